import type { Profile } from '#contracts/profiles'
import type { ModelServer } from './model-server.ts'
import type { Scratch } from './scratch.ts'

/** Where programs are; the vendor's is started by its path. */
const path = '/usr/local/bin:/usr/bin:/bin'
/** The same patience as the other runtimes have: how often a failing model call is made again, and what its server may take. */
const maxRetries = 2
const firstByteMs = 300_000
const mcpConnectMs = 5_000
/** As many tokens as a tool's answer may have; above it the vendor writes the answer to a file, which no tool can read. */
const maxToolTokens = 1_000_000

/** One name for all: the vendor would draw it from a path of this machine. */
export const projectName = 'session'

/** The whole environment of the vendor's process but for the addresses of tool servers. */
export function environment(
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
    // The vendor's bare mode: no hooks, no memory, no instruction files, no description of this machine in the prompt.
    CLAUDE_CODE_SIMPLE: '1',
    // Files that a prompt mentions are not read, also where `verbatimPrompts` should fail.
    CLAUDE_CODE_DISABLE_ATTACHMENTS: '1',
    CLAUDE_CODE_DISABLE_FILE_MENTIONS: '1',
    CLAUDE_CODE_DISABLE_BACKGROUND_TASKS: '1',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
    DISABLE_TELEMETRY: '1',
    DISABLE_ERROR_REPORTING: '1',
    // All tools of the session in every prompt; a search among them would be one more tool of the vendor's.
    ENABLE_TOOL_SEARCH: 'false',
    // An answer that broke off would be asked for again as a whole, behind what a client has already read.
    CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK: '1',
    CLAUDE_CODE_MAX_RETRIES: String(maxRetries),
    API_TIMEOUT_MS: String(firstByteMs),
    MCP_TIMEOUT: String(mcpConnectMs),
    MAX_MCP_OUTPUT_TOKENS: String(maxToolTokens),
    ...(maxOutputTokens === undefined ? {} : { CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(maxOutputTokens) }),
  }
}
