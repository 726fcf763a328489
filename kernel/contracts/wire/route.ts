import type { Static, TObject, TSchema } from '@sinclair/typebox'
import type { Listed } from '../errors.ts'

/** Media types with their OpenAPI schemas. */
export type Forms = Readonly<Record<string, TSchema>>

/** A JSON document. */
export interface JsonReply {
  readonly status: 200 | 201 | 202
  readonly json: TSchema
  /** The handler sends the same document with 201 for what is new. */
  readonly created?: true
}
/** 204 without a body. */
export interface NoReply {
  readonly status: 204
}
/** Bytes as they are. */
export interface BytesReply {
  readonly status: 200
  readonly bytes: Forms
  readonly description: string
}
/** A file that is sent as it is read: whole, a range of it (206), or nothing new (304). Its bytes are never held in memory as a whole. */
export interface FileReply {
  readonly status: 200
  /** The description for the documentation. */
  readonly file: string
}
/** Newline-delimited JSON that is sent while it is produced. */
export interface LinesReply {
  readonly status: 200 | 202
  readonly lines: TSchema
  readonly description: string
  /** Sent instead unless the caller's `Accept` asks for lines. */
  readonly json?: TSchema
}

/** One row of a wire: everything that its server and client must agree on. It contains only data. */
export interface Route {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  /** The path with `:params`. */
  readonly path: string
  /** Who may call the route, in the form of `access()`. */
  readonly access: string
  readonly tags: readonly string[]
  readonly summary: string
  readonly description?: string
  readonly params?: TObject
  readonly query?: TObject
  readonly headers?: TObject
  /** JSON of this schema. */
  readonly body?: TSchema
  /** The body is bytes of one of these types instead of JSON. */
  readonly bytes?: Forms
  /** The body is bytes of any type and length, which the handler reads as they come. Never over a link. */
  readonly streams?: true
  /** In bytes; 1 MiB by default. */
  readonly bodyLimit?: number
  readonly reply: JsonReply | NoReply | BytesReply | FileReply | LinesReply
  /** Its errors. */
  readonly errors?: readonly Listed[]
  /** The client's call resolves to undefined on 404, or only on a 404 with this code. */
  readonly absent?: true | string
}

export type Wire = Readonly<Record<string, Route>>

type StaticOf<S> = S extends TSchema ? Static<S> : undefined
export type ParamsOf<R extends Route> = StaticOf<R['params']>
export type QueryOf<R extends Route> = StaticOf<R['query']>
export type HeadersOf<R extends Route> = StaticOf<R['headers']>
export type BodyOf<R extends Route> = R['body'] extends TSchema
  ? Static<R['body']>
  : R['bytes'] extends Forms
    ? Uint8Array
    : R['streams'] extends true
      ? Uint8Array | AsyncIterable<Uint8Array>
      : undefined
