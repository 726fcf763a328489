import { Type } from '@sinclair/typebox'
import { maxReplayBytes } from '../replay.ts'
import { RunEnvelope } from '../run-envelope.ts'
import { invalidRequest } from '../http-errors.ts'
import { sidecarErrors } from '../sidecar-errors.ts'
import type { Wire } from './route.ts'

// The requests of runners to a sidecar. Specification 4.23, in which `SVC` stands for `Agent-Orc`.

export const workerInstanceHeader = 'x-agent-orc-worker-instance'
export const workerInflightHeader = 'x-agent-orc-worker-inflight'
export const workerProtocolHeader = 'x-agent-orc-worker-protocol'
export const runtimeSessionIdHeader = 'x-runtime-session-id'

/** Bytes: a prompt of 1,000,000 characters and instructions of 200,000, at up to 6 bytes each in JSON, attachments, and the replay. */
const maxEnvelopeBytes = 16 * 1024 * 1024 + maxReplayBytes
/** The largest state bundle that a runner keeps. */
export const maxBundleBytes = 64 * 1024 * 1024

const bytes = Type.String({ format: 'binary' })
export const bundleForms = {
  'application/json': Type.Unknown(),
  'application/gzip': bytes,
  'application/octet-stream': bytes,
}

/** A sidecar in another language needs only `ok` and `runtime`. */
const Health = Type.Object(
  {
    ok: Type.Boolean(),
    runtime: Type.String({ description: "A runtime's name, or `all`." }),
    runtimes: Type.Optional(Type.Array(Type.String())),
    missing: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description: 'Runtimes that are not offered, each with a sentence that says what it needs.',
      }),
    ),
    instance: Type.Optional(Type.String()),
    inflight: Type.Optional(Type.Integer({ description: 'Runs under way.' })),
    readsLinks: Type.Optional(Type.Boolean({ description: 'It reads linked attachments from its runner.' })),
  },
  { additionalProperties: true },
)

const health = {
  method: 'GET',
  access: 'public',
  tags: ['health'],
  summary: 'Say that the process lives, and what it runs',
  description: 'The header `X-Agent-Orc-Worker-Instance` names the process; another one means that it was restarted.',
  reply: { status: 200, json: Health },
} as const

const state = {
  path: '/state/:sessionId',
  access: 'network',
  tags: ['sessions'],
  params: Type.Object({ sessionId: Type.String({ maxLength: 256 }) }),
  query: Type.Object({
    runtime: Type.Optional(Type.String({ description: 'Needed where the sidecar serves more than one.' })),
  }),
} as const

export const sidecarWire = {
  health: { ...health, path: '/health' },
  healthz: { ...health, path: '/healthz' },
  run: {
    method: 'POST',
    path: '/run',
    access: 'network',
    tags: ['runs'],
    summary: 'Execute a run',
    description:
      'Closing the connection ends the run. The headers name the process and how many runs it has under way.',
    body: RunEnvelope,
    bodyLimit: maxEnvelopeBytes,
    reply: {
      status: 200,
      lines: Type.String(),
      description: 'RunEvents, one a line; the last one is `result` or `error`.',
    },
    errors: [
      invalidRequest,
      sidecarErrors.invalidSessionId,
      sidecarErrors.unknownRuntime,
      sidecarErrors.hostNotAllowed,
      sidecarErrors.sessionBusy,
      sidecarErrors.sessionStateMissing,
      sidecarErrors.sidecarDraining,
    ],
  },
  exportState: {
    ...state,
    method: 'GET',
    summary: 'Export the state of a session',
    description: 'Opaque to everybody but the runtime. The header `X-Runtime-Session-Id` belongs to it.',
    reply: { status: 200, bytes: bundleForms, description: 'The bundle, in the form of its runtime.' },
    errors: [sidecarErrors.notFound],
    absent: true,
  },
  hydrate: {
    ...state,
    method: 'POST',
    summary: 'Hydrate a session',
    description: 'The body is a bundle as it was exported, with its `Content-Type` and `X-Runtime-Session-Id`.',
    bytes: bundleForms,
    bodyLimit: maxBundleBytes,
    reply: { status: 204 },
    errors: [sidecarErrors.invalidState, sidecarErrors.stateNotSupported],
    absent: true,
  },
  forget: {
    ...state,
    method: 'DELETE',
    summary: 'Forget a session',
    description: 'Frees its memory. An unknown session is no error.',
    reply: { status: 204 },
    absent: true,
  },
} as const satisfies Wire
