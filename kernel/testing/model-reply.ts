/** The stand-in's answer to one request. */
export interface ModelReply {
  /** The whole text, cut into `deltas` pieces; 20 words by default. */
  readonly text?: string
  /** Number of text deltas; one per word by default. */
  readonly deltas?: number
  /** Milliseconds before each delta; 0 sends everything in one write. */
  readonly delayMs?: number
  readonly toolCalls?: readonly {
    readonly id?: string
    readonly name: string
    /** Only used in OpenAI Responses. */
    readonly namespace?: string
    readonly arguments: unknown
  }[]
  /** OpenAI Responses: further output items as they are, for calls that are no function calls. */
  readonly items?: readonly object[]
  /** Anthropic: the stop reason, when it is neither the end nor a tool call. */
  readonly stopReason?: string
  /** OpenAI Responses and Anthropic: how many input tokens are reported as read from a cache. */
  readonly cachedTokens?: number
  /** The reasoning before the answer; signed where the vendor signs it. */
  readonly reasoning?: string
  /** Answers with this HTTP status and an error body instead of a stream. */
  readonly status?: number
  /** Writes an error frame into the stream after the text, and no finish. */
  readonly inBandError?: string
  /** Cuts the connection after this many text deltas, in the middle of the answer. */
  readonly resetAfter?: number
  /** Cuts it no sooner than this resolves. */
  readonly resetWhen?: Promise<unknown>
  /** Stays silent after this many text deltas until the client closes. */
  readonly hangAfter?: number
  /** Stays silent before any header. */
  readonly hang?: boolean
}

/** The part of a chat request that tests look at; both wires share it. */
export interface ModelRequestBody {
  readonly model: string
  readonly stream?: boolean
  readonly max_tokens?: number
  readonly messages: readonly { readonly role: string; readonly content: unknown; readonly [more: string]: unknown }[]
  readonly [more: string]: unknown
}
