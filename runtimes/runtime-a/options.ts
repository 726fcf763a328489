import type { ModelEgress } from '#contracts/model'
import type { Profile } from '#contracts/profiles'
import type { RunEnvelope } from '#contracts/run-envelope'
import { type Conversation, projectName } from './conversations.ts'
import type { Scratch } from './root.ts'
import type { Options } from './sdk.ts'
import type { ToolServers } from './tool-servers.ts'
import { runtimeAErrors } from './errors.ts'

interface Place {
  readonly model: string
  readonly server: ModelServer
  readonly conversation: Conversation
  readonly scratch: Scratch
  readonly tools: ToolServers
  readonly spawn: Options['spawnClaudeCodeProcess']
}

/** The most model calls of one run, unless the profile sets a limit. */
const defaultMaxSteps = 16
export const maxStepsOf = ({ profile }: Pick<RunEnvelope, 'profile'>): number =>
  profile.limits.maxSteps ?? defaultMaxSteps

/** Options that confine the vendor's agent to this run: it has no tools of its own, no files of this machine, and no person to ask. */
const confined = {
  tools: [],
  settingSources: [],
  strictMcpConfig: true,
  permissionMode: 'dontAsk',
  // Prompts are plain text. Otherwise the vendor would replace `@/etc/passwd` by that file, and run `/name` as a command.
  verbatimPrompts: true,
  includePartialMessages: true,
} as const

export function optionsOf(envelope: RunEnvelope, place: Place): Options {
  const { conversation, scratch, server, tools } = place
  const { profile, responseFormat } = envelope
  return {
    ...confined,
    ...(conversation.resumes ? { resume: conversation.id } : { sessionId: conversation.id }),
    ...(responseFormat ? { outputFormat: { type: 'json_schema' as const, schema: responseFormat.schema } } : {}),
    cwd: scratch.work,
    env: { ...tools.env, ...environment(conversation.folder, scratch, server, profile.limits) },
    model: place.model,
    maxTurns: maxStepsOf(envelope),
    systemPrompt: profile.instructions,
    mcpServers: tools.config,
    allowedTools: tools.allowed,
    spawnClaudeCodeProcess: place.spawn,
  }
}

/** The search path for programs. The vendor's own program is started by its full path. */
const path = '/usr/local/bin:/usr/bin:/bin'
/** How often a failing model call is repeated, as in the other runtimes, and how long its server may take. */
const maxRetries = 2
const firstByteMs = 300_000
const mcpConnectMs = 5_000
/** More tokens than any tool result has. The vendor would write a longer result to a file, which no tool can read. */
const maxToolTokens = 1_000_000

/** The whole environment of the vendor's process, except for the addresses of tool servers. */
function environment(
  config: string,
  scratch: Scratch,
  server: ModelServer,
  { maxOutputTokens }: Profile['limits'],
): Record<string, string> {
  return {
    PATH: path,
    LANG: 'C.UTF-8',
    HOME: scratch.home,
    TMPDIR: scratch.tmp,
    CLAUDE_CODE_TMPDIR: scratch.tmp,
    CLAUDE_CONFIG_DIR: config,
    CLAUDE_CODE_PROJECT_DIR_NAME: projectName,
    ANTHROPIC_BASE_URL: server.baseUrl,
    ANTHROPIC_API_KEY: server.apiKey,
    // The vendor's bare mode: the prompt has no hooks, memory, instruction files or description of this machine.
    CLAUDE_CODE_SIMPLE: '1',
    // Do not read files that a prompt mentions, even if `verbatimPrompts` should fail.
    CLAUDE_CODE_DISABLE_ATTACHMENTS: '1',
    CLAUDE_CODE_DISABLE_FILE_MENTIONS: '1',
    CLAUDE_CODE_DISABLE_BACKGROUND_TASKS: '1',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
    DISABLE_TELEMETRY: '1',
    DISABLE_ERROR_REPORTING: '1',
    // Puts all session tools into every prompt, because searching among them would need another vendor tool.
    ENABLE_TOOL_SEARCH: 'false',
    // Without this the vendor would request a broken answer again from its start, after a client has read part of it.
    CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK: '1',
    CLAUDE_CODE_MAX_RETRIES: String(maxRetries),
    API_TIMEOUT_MS: String(firstByteMs),
    MCP_TIMEOUT: String(mcpConnectMs),
    MAX_MCP_OUTPUT_TOKENS: String(maxToolTokens),
    ...(maxOutputTokens === undefined ? {} : { CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(maxOutputTokens) }),
  }
}

export interface ModelServer {
  /** The address without `/v1`, which the vendor adds. */
  readonly baseUrl: string
  readonly apiKey: string
}

const provider = 'anthropic'

/** Where the vendor's process finds its models. For a sandboxed worker that is the runner, which has the key. */
export function modelServer(
  { apiKey, baseUrl }: { readonly apiKey?: string; readonly baseUrl?: string },
  egress: ModelEgress | undefined,
): ModelServer {
  if (egress) return { baseUrl: unversioned(egress.baseUrl(provider)), apiKey: egress.token() }
  if (!apiKey && !baseUrl) {
    throw runtimeAErrors.unknownModel({
      message: 'runtime_a has no model server here: set ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL or both.',
    })
  }
  // Without a key the vendor's program would require a login.
  return { baseUrl: unversioned(baseUrl || 'https://api.anthropic.com'), apiKey: apiKey || 'none' }
}

/** The vendor's name of the model. Throws AppError `unknown_model` for a model of another provider. */
export function modelId(name: string): string {
  const id = name.startsWith(`${provider}/`) ? name.slice(provider.length + 1) : ''
  if (id === '' || id.startsWith('-')) {
    throw runtimeAErrors.unknownModel({ message: `runtime_a runs models ${provider}/<name>, not '${name}'.` })
  }
  return id
}

const unversioned = (url: string): string => url.replace(/\/+$/, '').replace(/\/v1$/, '')
