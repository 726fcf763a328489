/** How an answer is encoded: the model's SSE, the gateway's SSE, or the gateway's synchronous JSON. */
export type Format = 'openai' | 'gateway' | 'sync'

export interface Expected {
  /** Characters of the whole text; undefined where it differs from answer to answer. */
  readonly characters?: number
}

/** One piece of load: `clients` connections, each sending its next chat when the last one ended. */
export interface Job {
  readonly origin: string
  /** Client n uses the n-th of these, round robin. */
  readonly requests: readonly { readonly path: string; readonly headers: Readonly<Record<string, string>> }[]
  /** A JSON object. */
  readonly body: string
  readonly format: Format
  readonly clients: number
  /** Clients go on until this has passed; absent: one chat each. */
  readonly durationMs?: number
  readonly expect: Expected
  readonly continueConversation?: boolean
  /** Deltas carry their send time; lateness is recorded. */
  readonly timed?: boolean
  /** Say so when every stream has shown its first delta. */
  readonly tellOpened?: boolean
}

export interface JobResult {
  readonly chats: number
  readonly errors: number
  readonly errorMessages: readonly string[]
  readonly ms: number
  /** Time to the first delta, and to the end, of each chat. */
  readonly firstMs: readonly number[]
  readonly totalMs: readonly number[]
  readonly lateMs: readonly number[]
}

export type ClientMessage =
  | { readonly kind: 'opened' }
  | { readonly kind: 'result'; readonly result: JobResult }
  | { readonly kind: 'failed'; readonly message: string }
