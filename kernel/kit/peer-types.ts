import type { LookupFunction } from 'node:net'
import type { Static, TObject, TSchema } from '@sinclair/typebox'
import type {
  BodyOf,
  BytesReply,
  FileReply,
  Forms,
  HeadersOf,
  JsonReply,
  LinesReply,
  NoReply,
  ParamsOf,
  QueryOf,
  Route,
} from '#contracts/wire/route'
import type { AppError, AppErrorOptions } from '../contracts/errors.ts'
import type { ReplyHeaders } from './answer.ts'
import type { LiveTls } from './tls.ts'

/** The errors that a wire uses for its own failures. */
export interface Faults {
  /**
   * No complete answer arrived. `asked` false: certainly nothing was begun; otherwise it may have been. `answered`: the head of the answer had
   * arrived.
   */
  lost(how: { readonly asked: boolean; readonly answered: boolean; readonly cause: Error }): AppError
  /** The peer answered 401: it does not accept the caller's proof. Absent: the peer's own error is used. */
  unproven?(): AppError
  /** The answer violates the table, or is a refusal in an unknown form. */
  failed(options: AppErrorOptions): AppError
}

/** How a caller proves its identity, and for which tenant it makes requests. */
export interface Identity {
  readonly tenantHeader: string
  /** The ways to sign, the best first. The next one is tried when a peer refuses one with 401. Absent: only the tenant's header is sent. */
  signatures?(): readonly Signature[]
}
export interface Signature {
  sign(request: SignedRequest): Record<string, string>
  /** Called when a peer has accepted this signature after it refused the earlier ones. */
  taken(): void
}
export interface SignedRequest {
  /** Empty when the request is about no tenant. */
  readonly tenant: string
  readonly method: string
  readonly target: string
  /** The headers of the request itself, in lower case. */
  readonly headers: Readonly<Record<string, string>>
  /** The bytes of the body. Empty for a stream, whose bytes are not known in advance. */
  readonly body: Uint8Array
  readonly isStream: boolean
}

export interface PeersOptions {
  readonly faults: Faults
  readonly identity: Identity
  readonly connectMs: number
  /** Resolves host names. Absent: the system's look-up. */
  readonly lookup?: LookupFunction
  /** Milliseconds of silence after which a stream counts as lost; 0 for never. A link detects losses by itself. */
  readonly silentMs?: number
  /** Milliseconds for a whole answer, or for the head of a stream. */
  readonly timeoutMs: number
  /** For peers whose addresses begin with https. It is closed together with the peers. */
  readonly tls?: LiveTls | undefined
  /** False: use HTTP for everything. */
  readonly links?: boolean
}

/** The servers of one wire, wherever they are. */
export interface Peers {
  at(url: string): Peer
  close(): Promise<void>
}

/** One server of a wire, asked by the rows of its table. */
export interface Peer {
  /**
   * Rejects with the peer's own error under its own code, status, sentence and detail (`retryable` only where the peer says
   * so), or with one of the wire's faults; with the signal's reason when that is an error.
   */
  ask<R extends Route>(route: R, ask: Ask<R>): Promise<AnsweredTo<R>>
  /** True once exchanges use a link. */
  readonly linked: boolean
}

type Needed<K extends string, S, T> = S extends TSchema | Forms
  ? { readonly [_ in K]: T }
  : { readonly [_ in K]?: never }
type Sent<R extends Route> = R['body'] extends TSchema ? R['body'] : R['streams'] extends true ? Forms : R['bytes']
export type Ask<R extends Route> = Needed<'params', R['params'], ParamsOf<R>> &
  Needed<'body', Sent<R>, BodyOf<R>> & {
    readonly tenant?: string
    readonly query?: R['query'] extends TObject ? QueryOf<R> : never
    readonly headers?: R['headers'] extends TObject ? Partial<HeadersOf<R>> : Readonly<Record<string, string>>
    readonly signal?: AbortSignal | undefined
    readonly timeoutMs?: number
    /** True when only its signal limits the duration. */
    readonly endless?: boolean
    /** The longest answer; 8 MiB by default. */
    readonly maxBytes?: number
  }

export interface BytesAnswer {
  readonly headers: ReplyHeaders
  readonly bytes: Buffer
}
export interface FileAnswer {
  readonly status: number
  readonly headers: ReplyHeaders
  /** Read it to its end, or leave it, because it holds a connection. */
  readonly body: AsyncIterableIterator<Buffer>
}
export interface LinesAnswer {
  readonly headers: ReplyHeaders
  /** Chunks of whole lines. */
  readonly lines: AsyncIterableIterator<Buffer>
  /** Says that the last line was read, so that the reader may leave without cutting the exchange. */
  expectEnd(): void
  /** True once the peer has ended the answer properly. */
  readonly complete: boolean
  /** True over a link, on which a leaving caller can say whether the work should continue, and why not. */
  readonly linked: boolean
}
type Absent<R extends Route> = R['absent'] extends true | string ? undefined : never
export type AnsweredTo<R extends Route> =
  | Absent<R>
  | (R['reply'] extends LinesReply
      ? LinesAnswer
      : R['reply'] extends FileReply
        ? FileAnswer
        : R['reply'] extends BytesReply
          ? BytesAnswer
          : R['reply'] extends JsonReply
            ? Static<R['reply']['json']>
            : R['reply'] extends NoReply
              ? true
              : never)
