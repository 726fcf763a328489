import { Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'

export const idempotencyErrors = errorTable('idempotency', {
  idempotencyKeyReused: {
    status: 422,
    message: 'This Idempotency-Key was used with another request body; send a new key.',
  },
  idempotencyInFlight: {
    status: 409,
    retry: true,
    message: 'A request with this Idempotency-Key is in progress; repeat it when that one has ended.',
  },
})

/** The headers of a route that accepts an `Idempotency-Key`. They are validated like a body: another form is 400 `invalid_request`. */
export const IdempotencyHeaders = Type.Object({
  'idempotency-key': Type.Optional(
    Type.String({
      pattern: '^[\\x20-\\x7e]{1,255}$',
      description:
        'Your own id of this request, 1-255 printable ASCII characters. Repeated with the same body within 24 h, it gets the first answer, with `Idempotency-Replayed: true`; with another body 422 `idempotency_key_reused`; while the first request is in progress 409 `idempotency_in_flight`.',
    }),
  ),
})

/** The header of an answer that an earlier request with the same key already got. */
export const replayedHeader = { 'idempotency-replayed': 'true' } as const

/** The ids that a request will create, chosen in advance. */
export type Plan = Readonly<Record<string, string>>

export interface Answer {
  readonly status: number
  readonly body: unknown
}

export interface IdempotentCall<P extends Plan> {
  readonly tenantId: string
  /** The caller and the purpose, e.g. `key_… chat`, so that two callers never share a key. */
  readonly scope: string
  readonly key: string
  /** The parsed body. The order of its members does not matter. */
  readonly body: unknown
  /** Stored with the key, unless an earlier request with the key has stored its own plan. */
  readonly plan: P
}

/** One request with a key. It has the key to itself until it calls `end` or `forget`, or its process dies. */
export interface Attempt<P extends Plan> {
  /** The plan of the first request with this key. */
  readonly plan: P
  /** An earlier request may have begun what `plan` names, so join it if it exists. */
  readonly repeated: boolean
  /** The answer to an earlier request, if one was stored. */
  readonly answer: Answer | undefined
  /** Releases the key for the next request, which gets `answer`, or joins what was begun. */
  end(answer?: Answer): Promise<void>
  /** Marks the key as unused, because nothing was started. */
  forget(): Promise<void>
}

/** Remembers the requests of each `Idempotency-Key` in the database, for all processes of the role. */
export interface Idempotency {
  /** Rejects with `idempotency_key_reused` 422 or `idempotency_in_flight` 409. */
  begin<P extends Plan>(call: IdempotentCall<P>): Promise<Attempt<P>>
}

export const Idempotency = capability<Idempotency>('core.idempotency')
