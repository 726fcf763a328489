/** How an answer is encoded: the model's SSE, the gateway's SSE, its synchronous JSON, or the conductor's 202. */
export type Format = 'openai' | 'gateway' | 'sync' | 'accepted'

export interface Expected {
  /** Characters of the whole text; undefined where it differs from answer to answer. */
  readonly characters?: number
}

/** One piece of load: `clients` clients, each sending its next chat when the last one ended. */
export interface Job {
  /** Client n uses the n-th of these, round robin. */
  readonly requests: readonly {
    readonly origin: string
    readonly path: string
    readonly headers: Readonly<Record<string, string>>
  }[]
  /** A JSON object. */
  readonly body: string
  readonly format: Format
  readonly clients: number
  /** Clients go on until this has passed; absent: one chat each. */
  readonly durationMs?: number
  /** Sends at this rate instead, by the clock, without waiting for earlier chats; times count from when a chat was due. */
  readonly perSecond?: number
  readonly expect: Expected
  readonly continueConversation?: boolean
  /** True when deltas carry their send time, so that lateness is recorded. */
  readonly timed?: boolean
  /** True to report when every stream has shown its first delta, and to keep the lateness until then apart. */
  readonly tellOpened?: boolean
  /** How long lateness is recorded once all streams are open; until the first one ends unless given. */
  readonly lateForMs?: number
}

export interface JobResult {
  readonly chats: number
  readonly errors: number
  readonly errorMessages: readonly string[]
  readonly ms: number
  /** Time to the first delta, and to the end, of each chat. */
  readonly firstMs: readonly number[]
  readonly totalMs: readonly number[]
  /** From the model's write to the client's read, while every stream was open; before that, `openingLateMs`. */
  readonly lateMs: readonly number[]
  readonly openingLateMs: readonly number[]
  /** From the first request until every stream has shown its first delta. */
  readonly openedMs?: number
  /** How late the client itself was with what it sent by the clock. */
  readonly lagMs: readonly number[]
}

export type ClientMessage =
  | { readonly kind: 'opened' }
  | { readonly kind: 'result'; readonly result: JobResult }
  | { readonly kind: 'failed'; readonly message: string }
