// The public contract of the kernel: everything a plugin may import from it.
export {
  type Capability,
  capability,
  type Consumed,
  definePlugin,
  maybe,
  type Plugin,
  type PluginContext,
  type PluginSpec,
  type Provided,
  slot,
} from './plugin.ts'
export { BootError, type Entry, type ListenerConfig, type Origin, plan, type Role } from './plan.ts'
export { boot, type BootOptions, type Running } from './boot.ts'
export { access, accessOf } from './http/access.ts'
export { uploadAccess } from './http/arrival.ts'
export { eventStream, failure, jsonLines, negotiated, NoContent, plainText } from './http/answers.ts'
export type { App, TypeBox } from './http/app.ts'
export {
  AppError,
  appError,
  type AppErrorOptions,
  conflict,
  forbidden,
  isAppError,
  notFound,
  unauthorized,
  unavailable,
} from './errors.ts'
export { errorBody } from './http/errors.ts'
export {
  type Chunk,
  lastEventId,
  ndjson,
  sse,
  sseFrame,
  stream,
  type StreamEnd,
  type StreamOptions,
} from './http/streams.ts'
export {
  createLineQueue,
  type LineQueue,
  linesOf,
  maxLineBytes,
  OversizedLineError,
  whenRead,
  wholeLines,
} from './kit/lines.ts'
export { Base64Secret, CommaList, Duration, Settings } from './settings.ts'
// Schemas of settings and routes are made with this copy: a plugin needs no TypeBox of its own.
export { type Static, Type } from '@sinclair/typebox'
