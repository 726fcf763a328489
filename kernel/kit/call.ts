import type { IncomingMessage } from 'node:http'
import type { FastifyBaseLogger, FastifySchemaCompiler } from 'fastify'
import type { Caller } from '#contracts/auth'
import type { Route } from '#contracts/wire/route'
import type { StreamRegistry } from '../http/streams.ts'

/** A handler's answer: JSON, at once or in parts, bytes, lines or nothing. */
export interface Answered {
  readonly headers?: Readonly<Record<string, string>>
  readonly json?: unknown
  readonly bytes?: Uint8Array
  /** Media type of `bytes`. */
  readonly type?: string
  /** Chunks of whole lines. */
  readonly lines?: AsyncIterable<Buffer>
  /** One JSON document in parts that are made while it is sent. It is cut off where a part fails. */
  readonly parts?: AsyncIterable<Buffer>
}

/** One request as a handler sees it, over HTTP or a link. */
export interface AnyCall {
  /** Who makes the call. Throws on a listener that does not authenticate. */
  readonly caller: Caller
  readonly params: unknown
  readonly query: unknown
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly body: unknown
  /** Aborts when the caller is gone (`client_gone`; on a link the reason of its signal: `leaving`, a `FailingStop`, else `cancelled`) or the server stops (`shutdown`). */
  readonly signal: AbortSignal
  /** True when the caller accepts lines. */
  readonly wantsLines: boolean
}

export interface ServedRoute {
  readonly route: Route
  readonly handle: (call: AnyCall) => Promise<Answered | void> | Answered | void
}

/** What the links of a listener need from it. */
export interface LinkHostOptions {
  readonly log: FastifyBaseLogger
  readonly streams: StreamRegistry
  readonly compile: FastifySchemaCompiler<unknown>
  /** Parses JSON within the bounds of a body. Throws an AppError. */
  readonly parse: (json: Buffer) => unknown
  readonly logRequests: boolean
  /** The limit of routes that name none. */
  readonly bodyLimit: number
  /** Rejects with an AppError when the listener requires a proof from its callers and the opening of a link has none. */
  readonly prove: (request: IncomingMessage) => Promise<unknown>
}

/** Decides who may have a link to a listener, and who the caller of an exchange is. */
export interface Admission {
  /** Rejects with an AppError. */
  admit(request: IncomingMessage): Promise<void>
  /**
   * Returns the caller. Throws an AppError when it lacks this access. Absent on a listener that does not authenticate: only routes that are open to
   * the network are then served.
   */
  callerOf?(access: string, headers: AnyCall['headers']): Caller
}

/** Admits everybody, for a network whose callers are also trusted over HTTP. */
export const trusted: Admission = { admit: async () => {} }
