import type { IncomingMessage } from 'node:http'
import type { Caller } from '#contracts/auth'
import type { Route } from '#contracts/wire/route'

/** What a route answers with: one of JSON, bytes and lines, or nothing. */
export interface Answered {
  readonly headers?: Readonly<Record<string, string>>
  readonly json?: unknown
  readonly bytes?: Uint8Array
  /** Media type of `bytes`. */
  readonly type?: string
  /** Chunks of whole lines. */
  readonly lines?: AsyncIterable<Buffer>
}

/** One request as a handler sees it, whichever way it came. */
export interface AnyCall {
  /** Who makes it; throws where nobody is told apart. */
  readonly caller: Caller
  readonly params: unknown
  readonly query: unknown
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  readonly body: unknown
  /** Aborts when the caller is gone (`client_gone`; on a link the reason of its signal: `leaving`, a `FailingStop`, else `cancelled`) or the server stops (`shutdown`). */
  readonly signal: AbortSignal
  /** The caller reads lines. */
  readonly wantsLines: boolean
}

export interface ServedRoute {
  readonly route: Route
  readonly handle: (call: AnyCall) => Promise<Answered | void> | Answered | void
}

/** Who may have a link to a listener, and who speaks on it. */
export interface Admission {
  /** Rejects with an AppError. */
  admit(request: IncomingMessage): Promise<void>
  /** Throws an AppError when this access is not for whoever has the link. Absent: nobody is told apart, and what is open to the network is served. */
  callerOf?(access: string, headers: AnyCall['headers']): Caller
}

/** On a network whose callers are trusted, as they are over HTTP. */
export const trusted: Admission = { admit: async () => {} }
