// The part of the app-server protocol of Codex 0.163 that this runtime uses, as `codex app-server generate-ts` prints it.

export interface ThreadOpened {
  readonly thread: { readonly id: string }
}
export interface TurnStarted {
  readonly turn: { readonly id: string }
}

export type UserInput =
  | { readonly type: 'text'; readonly text: string; readonly text_elements: readonly [] }
  | { readonly type: 'image'; readonly url: string }

export interface McpToolCall {
  readonly type: 'mcpToolCall'
  readonly id: string
  readonly server: string
  readonly tool: string
  readonly status: 'inProgress' | 'completed' | 'failed'
  readonly arguments: unknown
  readonly result: { readonly content: readonly unknown[]; readonly structuredContent: unknown } | null
  readonly error: { readonly message: string } | null
}
interface AgentMessage {
  readonly type: 'agentMessage'
  readonly id: string
  readonly text: string
}
/** Of all other kinds only the name is used. */
export type ThreadItem = McpToolCall | AgentMessage | { readonly type: 'contextCompaction' | 'other' }

export interface ItemReported {
  readonly turnId: string
  readonly item: ThreadItem
}
export interface MessageDelta {
  readonly turnId: string
  readonly delta: string
}
interface TokenUsage {
  readonly inputTokens: number
  readonly cachedInputTokens: number
  readonly outputTokens: number
}
export interface UsageReported {
  readonly turnId: string
  /** `last`: the usage of the model call that just ended. */
  readonly tokenUsage: { readonly total: TokenUsage; readonly last: TokenUsage }
}
export interface McpServerReported {
  readonly name: string
  readonly status: 'starting' | 'ready' | 'failed' | 'cancelled'
}

export interface TurnError {
  readonly message: string
  /** The kind of error as a word, or as a word with its details. */
  readonly codexErrorInfo: string | Readonly<Record<string, { readonly httpStatusCode?: number | null }>> | null
}
export interface TurnCompleted {
  readonly turn: {
    readonly id: string
    readonly status: 'completed' | 'interrupted' | 'failed' | 'inProgress'
    readonly error: TurnError | null
  }
}
