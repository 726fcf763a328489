import type { Readable, Writable } from 'node:stream'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

// The types of @anthropic-ai/claude-agent-sdk 0.3 that this adapter uses. The package is no dependency, so its own are not available.

export interface VendorSdk {
  query(args: { readonly prompt: AsyncIterable<UserMessage>; readonly options: Options }): Query
}

export interface Query extends AsyncIterable<Message> {
  /** Ends the turn and has its messages so far written down. Rejects when the process is gone. */
  interrupt(): Promise<unknown>
}

export interface Options {
  readonly cwd: string
  /** The complete environment. Nothing of this process's environment is added. */
  readonly env: Readonly<Record<string, string>>
  readonly model: string
  readonly systemPrompt: string
  readonly tools: readonly never[]
  readonly allowedTools: readonly string[]
  readonly permissionMode: 'dontAsk'
  readonly settingSources: readonly never[]
  readonly strictMcpConfig: true
  readonly verbatimPrompts: true
  readonly includePartialMessages: true
  readonly maxTurns: number
  readonly mcpServers: Readonly<Record<string, HttpServer>>
  readonly outputFormat?: { readonly type: 'json_schema'; readonly schema: Readonly<Record<string, unknown>> }
  /** The id of a new conversation, or of an old one that is resumed. */
  readonly sessionId?: string
  readonly resume?: string
  readonly spawnClaudeCodeProcess: (command: Command) => Spawned
}

export interface HttpServer {
  readonly type: 'http' | 'sse'
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  /** The server's tools are in every prompt, and the first prompt waits until the server is connected. */
  readonly alwaysLoad: true
  /** Milliseconds for one call. */
  readonly timeout: number
}

export interface Command {
  readonly command: string
  readonly args: readonly string[]
  readonly cwd?: string
  readonly env: Readonly<Record<string, string | undefined>>
}

export interface Spawned {
  readonly stdin: Writable
  readonly stdout: Readable
  readonly killed: boolean
  readonly exitCode: number | null
  kill(signal: NodeJS.Signals): boolean
  on(event: 'exit', listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  once(event: 'exit', listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown
  once(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'exit', listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
}

export interface UserMessage {
  readonly type: 'user'
  readonly message: { readonly role: 'user'; readonly content: readonly PromptBlock[] }
  readonly parent_tool_use_id: null
}

export type PromptBlock =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly source: Base64 }
  | { readonly type: 'document'; readonly source: Base64; readonly title?: string }
interface Base64 {
  readonly type: 'base64'
  readonly media_type: string
  readonly data: string
}

export type Message = Init | Retry | Compacted | StreamEvent | Assistant | User | Result | { readonly type: 'other' }

export interface Init {
  readonly type: 'system'
  readonly subtype: 'init'
  readonly session_id: string
  readonly mcp_servers: readonly { readonly name: string; readonly status: string }[]
}

/** Reports that a model call failed and is retried. */
export interface Retry {
  readonly type: 'system'
  readonly subtype: 'api_retry'
}

/** Reports that the conversation was too long for its model, so that older turns were summarized. */
interface Compacted {
  readonly type: 'system'
  readonly subtype: 'compact_boundary'
}

/** A frame of the model server's own stream. */
export interface StreamEvent {
  readonly type: 'stream_event'
  readonly parent_tool_use_id: string | null
  readonly event:
    | { readonly type: 'message_start'; readonly message: { readonly usage?: Tokens } }
    | { readonly type: 'content_block_delta'; readonly delta: { readonly type: string; readonly text?: string } }
    | {
        readonly type: 'message_delta'
        readonly delta: { readonly stop_reason: string | null }
        readonly usage?: Tokens
      }
    | { readonly type: 'other' }
}

export interface Tokens {
  readonly input_tokens?: number | null
  readonly cache_read_input_tokens?: number | null
  readonly cache_creation_input_tokens?: number | null
  readonly output_tokens?: number | null
}

export interface Assistant {
  readonly type: 'assistant'
  readonly parent_tool_use_id: string | null
  readonly message: { readonly content: readonly AssistantBlock[] }
}
type AssistantBlock =
  | { readonly type: 'tool_use'; readonly id: string; readonly name: string; readonly input: unknown }
  | { readonly type: 'other' }

export interface User {
  readonly type: 'user'
  readonly parent_tool_use_id: string | null
  readonly message: { readonly content: string | readonly UserBlock[] }
}
type UserBlock =
  | {
      readonly type: 'tool_result'
      readonly tool_use_id: string
      readonly content?: string | readonly { readonly type: string; readonly text?: string }[]
      readonly is_error?: boolean
    }
  | { readonly type: 'other' }

export interface Result {
  readonly type: 'result'
  readonly subtype:
    | 'success'
    | 'error_during_execution'
    | 'error_max_turns'
    | 'error_max_budget_usd'
    | 'error_max_structured_output_retries'
  /** May be true for a `success` too: the model server failed in that case. */
  readonly is_error: boolean
  readonly api_error_status?: number | null
  readonly api_error?: string
  readonly stop_reason: string | null
  readonly result?: string
  readonly structured_output?: unknown
  /** Totals by the vendor's model names, of this run alone even when the conversation is older. */
  readonly model_usage_since_last_result?: Readonly<Record<string, ModelTotals>>
}

export interface ModelTotals {
  readonly inputTokens?: number
  readonly outputTokens?: number
  readonly cacheReadInputTokens?: number
  readonly cacheCreationInputTokens?: number
}

const name = '@anthropic-ai/claude-agent-sdk'
/** The supported version. In another version the options that switch host tools off may differ, so its code must be reviewed first. */
const line = '0.3'
const how = `run \`npm run runtimes:install runtime_a\`, or \`npm install ${name}@${line}\` where agent-orc is installed from npm.`

/** The vendor's package, which is not part of the default install. */
export interface Vendor {
  /** A sentence that says why the package cannot be used. It is looked up again until the package is found, so that installing it needs no restart. */
  readonly missing: string | undefined
  load(): Promise<VendorSdk>
}

export function vendorPackage(from = new URL('vendor/package.json', import.meta.url)): Vendor {
  let found: string | undefined
  const find = (): string | undefined => {
    try {
      // Resolving from here also finds a package that was installed next to agent-orc.
      return createRequire(from).resolve(name)
    } catch {
      return undefined
    }
  }
  const missing = (): string | undefined => {
    if (found !== undefined) return undefined
    const entry = find()
    if (entry === undefined) return `runtime_a needs the package ${name}: ${how}`
    const version = versionOf(entry)
    if (!version.startsWith(`${line}.`)) {
      return `runtime_a works with ${name} ${line}, and ${version} is installed: ${how}`
    }
    found = entry
    return undefined
  }
  return {
    get missing() {
      return missing()
    },
    load: async () => (await import(pathToFileURL(found!).href)) as VendorSdk,
  }
}

const versionOf = (entry: string): string =>
  (JSON.parse(readFileSync(join(dirname(entry), 'package.json'), 'utf8')) as { version: string }).version
