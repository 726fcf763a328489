import { join } from 'node:path'
import type { ModelEgress } from '#contracts/model'
import type { McpServer, UnavailableMcpServer } from '#contracts/mcp-servers'
import { type RunEnvelope, toolsUrlOf } from '#contracts/run-envelope'
import type { Launch } from './app-server.ts'
import type { RuntimeBConfig } from './config.ts'
import { runtimeBErrors } from './errors.ts'

/** The only provider whose API Codex supports. */
const provider = 'openai'
const officialUrl = 'https://api.openai.com/v1'
/** Attempts of a model call before its first byte: three in all, as in `general`. */
const requestRetries = 2
/** Seconds that an MCP server may take to connect. Without the session's own server the run ends; without another server it continues. */
export const mcpStartSeconds = 5

const variables = { modelKey: 'AGENT_ORC_MODEL_KEY', toolsToken: 'AGENT_ORC_TOOLS_TOKEN', header: 'AGENT_ORC_HEADER_' }

/** How one run is started. Secrets travel in the environment and addresses through the pipe, so that neither appears in a list of processes. */
export interface RunLaunch extends Omit<Launch, 'command'> {
  /** The model's name without its provider. */
  readonly model: string
  readonly modelProvider: string
  /** The config of `thread/start` and `thread/resume`. */
  readonly config: Readonly<Record<string, unknown>>
  /** The name of the session's own MCP server. */
  readonly sessionServer: string
  /** Names of the external MCP servers that Codex connects to, and of those that are left out. */
  readonly external: readonly string[]
  readonly unavailable: readonly UnavailableMcpServer[]
  /** The file that describes the model to Codex. */
  readonly modelFile: string
}

export function launchOf(
  envelope: Pick<
    RunEnvelope,
    'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'mcpUnavailable' | 'timeoutMs'
  >,
  folder: string,
  config: Pick<RuntimeBConfig, 'apiKey' | 'baseUrl'>,
  egress: ModelEgress | undefined,
): RunLaunch {
  const { url, key } = modelServer(config, egress)
  const { external, unavailable } = usable(envelope)
  const { servers, sessionServer, env } = mcpServers(envelope, external)
  const modelFile = join(folder, 'model.json')
  return {
    folder,
    args: switches({ model_catalog_json: modelFile }),
    env: { CODEX_HOME: folder, HOME: folder, ...(key ? { [variables.modelKey]: key } : {}), ...env },
    model: modelOf(envelope.profile.model),
    modelProvider: providerId,
    modelFile,
    sessionServer,
    external: external.map(({ name }) => name),
    unavailable,
    config: {
      model_providers: {
        [providerId]: {
          name: providerId,
          base_url: url,
          wire_api: 'responses',
          ...(key ? { env_key: variables.modelKey } : {}),
          request_max_retries: requestRetries,
          // No retries: a retry would repeat an answer from its start, after part of it was streamed.
          stream_max_retries: 0,
        },
      },
      mcp_servers: servers,
    },
  }
}

/** A name of our own, because Codex reserves the names of its own providers. */
const providerId = 'agent-orc'

function modelOf(name: string): string {
  const slash = name.indexOf('/')
  if (name.slice(0, slash) !== provider) {
    throw runtimeBErrors.unknownModel({
      message: `runtime_b runs models of ${provider}, written ${provider}/model, and not '${name}'.`,
    })
  }
  return name.slice(slash + 1)
}

function modelServer({ apiKey, baseUrl }: Pick<RuntimeBConfig, 'apiKey' | 'baseUrl'>, egress: ModelEgress | undefined) {
  if (egress) return { url: egress.baseUrl(provider), key: egress.token() }
  if (apiKey || baseUrl) return { url: baseUrl || officialUrl, key: apiKey }
  throw runtimeBErrors.unknownModel({
    message: 'runtime_b has no model server: set OPENAI_API_KEY or OPENAI_BASE_URL.',
  })
}

/** The external servers that Codex supports with the settings of their entries. */
function usable({ mcpServers: all = [], mcpUnavailable = [] }: Pick<RunEnvelope, 'mcpServers' | 'mcpUnavailable'>) {
  const unavailable = [...mcpUnavailable]
  const external = all.filter(({ name, transport, tools = [] }) => {
    const message = tools.some(({ digest }) => digest !== undefined)
      ? 'This runtime cannot withhold tools that need a review; use the runtime general.'
      : transport === 'sse'
        ? 'This runtime speaks only streamable HTTP.'
        : undefined
    if (message !== undefined) unavailable.push({ server: name, message })
    return message === undefined
  })
  return { external, unavailable }
}

function mcpServers(
  envelope: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'timeoutMs'>,
  external: readonly McpServer[],
): {
  servers: Record<string, unknown>
  sessionServer: string
  env: Record<string, string>
} {
  const { sessionMcpToken } = envelope
  const sessionMcpUrl = toolsUrlOf(envelope)
  const servers: Record<string, unknown> = {}
  const env: Record<string, string> = {}
  const common = {
    default_tools_approval_mode: 'approve',
    startup_timeout_sec: mcpStartSeconds,
    // The deadline of the run ends a call. The default of a minute would end long tools early.
    tool_timeout_sec: Math.ceil(envelope.timeoutMs / 1_000),
    supports_parallel_tool_calls: true,
  }
  for (const { name, url, headers = {}, tools } of external) {
    const fromEnv = Object.entries(headers).map(([header, value]) => {
      const variable = `${variables.header}${Object.keys(env).length}`
      env[variable] = value
      return [header, variable] as const
    })
    const only = tools ? { enabled_tools: tools.map((tool) => tool.name) } : {}
    servers[name] = { ...common, ...only, url, env_http_headers: Object.fromEntries(fromEnv) }
  }
  let sessionServer = 'runner'
  while (sessionServer in servers) sessionServer += '_'
  if (sessionMcpUrl !== undefined) {
    if (sessionMcpToken !== undefined) env[variables.toolsToken] = sessionMcpToken
    const token = sessionMcpToken === undefined ? {} : { bearer_token_env_var: variables.toolsToken }
    // Required: otherwise a refused token would silently cost the run its tools.
    servers[sessionServer] = { ...common, url: sessionMcpUrl, ...token, required: true }
  }
  return { servers, sessionServer, env }
}

/**
 * Features of Codex 0.163 that are on by default: everything that acts on the machine, sends data to the vendor, asks a person, or gives the model
 * tools beyond the session's. All are switched off. A test compares the list with what the installed program still has on.
 */
const off: Readonly<Record<string, readonly string[]>> = {
  'tools of the machine': [
    'shell_tool unified_exec unified_exec_tty shell_snapshot write_stdin_approval view_image hooks',
    'code_mode_host code_mode_interrupt computer_use workspace_dependencies worktrees',
    'browser_use browser_use_external browser_use_full_cdp_access browser_annotation_api',
    'in_app_browser in_app_chat in_app_dictation in_app_local_automation in_app_updates in_app_voice',
  ],
  "tools that are not the session's": [
    'image_generation multi_agent goals sleep_tool tool_suggest mentions_v2 realtime_conversation',
    'apps plugins plugin_sharing remote_plugin skill_search skill_mcp_dependency_install',
  ],
  'questions to a person': [
    'guardian_approval guardian_reuse_parent_compaction auth_elicitation tool_call_mcp_elicitation',
  ],
  'calls to the vendor': [
    'api_key_model_discovery api_key_cyber_access_programs cli_daybreak fast_mode ultrafast_mode',
    'daemon_auto_start system_proxy_fallback',
  ],
  "what only the vendor's own servers read": ['enable_request_compression compaction_image_budget content_item_kinds'],
  'a dead model server tried for ever': ['unbounded_connection_retries'],
}

/** Keeps Codex from reporting the images of a prompt back. They would be the longest lines by far, twice. */
const on = 'omit_app_server_notification_media'

const settings: Readonly<Record<string, unknown>> = {
  approval_policy: 'never',
  sandbox_mode: 'read-only',
  web_search: 'disabled',
  'tools.experimental_request_user_input.enabled': false,
  'tools.update_plan.enabled': false,
  'skills.bundled.enabled': false,
  'skills.include_instructions': false,
  'shell_environment_policy.inherit': 'none',
  // Only the profile's instructions are sent.
  include_permissions_instructions: false,
  include_environment_context: false,
  include_apps_instructions: false,
  include_collaboration_mode_instructions: false,
  project_doc_max_bytes: 0,
  // Off, because this message tells the model of processes that cannot exist here.
  'agents.interrupt_message': false,
  // Models without reasoning refuse requests for summaries.
  model_reasoning_summary: 'none',
  'analytics.enabled': false,
  'feedback.enabled': false,
  'otel.exporter': 'none',
  'otel.trace_exporter': 'none',
  'otel.metrics_exporter': 'none',
  check_for_update_on_startup: false,
  'history.persistence': 'none',
  suppress_unstable_features_warning: true,
}

/** The arguments of a process. They hold no secrets, because every user of the machine can read them. */
export function switches(more: Readonly<Record<string, unknown>> = {}): string[] {
  const features = Object.values(off).flatMap((lines) => lines.flatMap((names) => names.split(' ')))
  const all = Object.entries({
    ...Object.fromEntries(features.map((name) => [`features.${name}`, false])),
    [`features.${on}`]: true,
    ...settings,
    ...more,
  })
  // Strings, numbers and booleans look alike in JSON and TOML.
  return all.flatMap(([key, value]) => ['-c', `${key}=${JSON.stringify(value)}`])
}

/**
 * Describes the model to Codex as a catalogue with one entry. Codex's own catalogue gives newer models a JavaScript host, a shell and a search
 * instead of the session's tools, and for unknown models it only guesses.
 */
export const modelFile = (model: string, contextTokens: number): string =>
  JSON.stringify({
    models: [
      {
        slug: model,
        display_name: model,
        description: null,
        supported_reasoning_levels: [],
        shell_type: 'disabled',
        apply_patch_tool_type: null,
        experimental_supported_tools: [],
        supports_search_tool: false,
        base_instructions: '',
        support_verbosity: false,
        default_verbosity: null,
        context_window: contextTokens,
        truncation_policy: { mode: 'tokens', limit: toolOutputTokens },
        input_modalities: ['text', 'image'],
        visibility: 'list',
        supported_in_api: true,
        priority: 1,
        availability_nux: null,
        upgrade: null,
      },
    ],
  })

/** How much of one tool result the model sees, in tokens: 200,000 characters, as in `general`. */
const toolOutputTokens = 50_000
