import { join } from 'node:path'
import { type RunEnvelope, toolsUrlOf } from '#contracts/run-envelope'
import type { ModelEgress } from '#contracts/model'
import type { Launch } from './app-server.ts'
import type { RuntimeBConfig } from './config.ts'
import { unknownModel } from './errors.ts'
import { switches } from './switches.ts'

/** The only provider whose wire Codex speaks. */
const provider = 'openai'
const officialUrl = 'https://api.openai.com/v1'
/** Attempts of a model call before its first byte: three in all, as in `general`. */
const requestRetries = 2
/** How long an MCP server may take to be connected: the session's, or the run ends; another one, or the run goes without it. */
export const mcpStartSeconds = 5

const variables = { modelKey: 'AGENT_ORC_MODEL_KEY', toolsToken: 'AGENT_ORC_TOOLS_TOKEN', header: 'AGENT_ORC_HEADER_' }

/** How one run is started: secrets go by the environment, addresses by the pipe; neither is seen in a list of processes. */
export interface RunLaunch extends Omit<Launch, 'command'> {
  /** The model's name without its provider. */
  readonly model: string
  readonly modelProvider: string
  /** Of `thread/start` and `thread/resume`. */
  readonly config: Readonly<Record<string, unknown>>
  /** What the session's own MCP server is called. */
  readonly sessionServer: string
  /** Where Codex finds what it has to know of the model. */
  readonly modelFile: string
}

export function launchOf(
  envelope: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'timeoutMs'>,
  folder: string,
  config: Pick<RuntimeBConfig, 'apiKey' | 'baseUrl'>,
  egress: ModelEgress | undefined,
): RunLaunch {
  const { url, key } = modelServer(config, egress)
  const { servers, sessionServer, env } = mcpServers(envelope)
  const modelFile = join(folder, 'model.json')
  return {
    folder,
    args: switches({ model_catalog_json: modelFile }),
    env: { CODEX_HOME: folder, HOME: folder, ...(key ? { [variables.modelKey]: key } : {}), ...env },
    model: modelOf(envelope.profile.model),
    modelProvider: providerId,
    modelFile,
    sessionServer,
    config: {
      model_providers: {
        [providerId]: {
          name: providerId,
          base_url: url,
          wire_api: 'responses',
          ...(key ? { env_key: variables.modelKey } : {}),
          request_max_retries: requestRetries,
          // An answer that broke off would be said again from its start, behind what was said.
          stream_max_retries: 0,
        },
      },
      mcp_servers: servers,
    },
  }
}

/** Codex keeps the names of its own providers to itself. */
const providerId = 'agent-orc'

function modelOf(name: string): string {
  const slash = name.indexOf('/')
  if (name.slice(0, slash) !== provider) {
    throw unknownModel({
      message: `runtime_b runs models of ${provider}, written ${provider}/model, and not '${name}'.`,
    })
  }
  return name.slice(slash + 1)
}

function modelServer({ apiKey, baseUrl }: Pick<RuntimeBConfig, 'apiKey' | 'baseUrl'>, egress: ModelEgress | undefined) {
  if (egress) return { url: egress.baseUrl(provider), key: egress.token() }
  if (apiKey || baseUrl) return { url: baseUrl || officialUrl, key: apiKey }
  throw unknownModel({ message: 'runtime_b has no model server: set OPENAI_API_KEY or OPENAI_BASE_URL.' })
}

function mcpServers(
  envelope: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'timeoutMs'>,
): {
  servers: Record<string, unknown>
  sessionServer: string
  env: Record<string, string>
} {
  const { sessionMcpToken, mcpServers: external = [] } = envelope
  const sessionMcpUrl = toolsUrlOf(envelope)
  const servers: Record<string, unknown> = {}
  const env: Record<string, string> = {}
  const common = {
    default_tools_approval_mode: 'approve',
    startup_timeout_sec: mcpStartSeconds,
    // The run's own deadline ends a call; the usual minute would end long tools early.
    tool_timeout_sec: Math.ceil(envelope.timeoutMs / 1_000),
    supports_parallel_tool_calls: true,
  }
  for (const { name, url, headers = {} } of external) {
    const fromEnv = Object.entries(headers).map(([header, value]) => {
      const variable = `${variables.header}${Object.keys(env).length}`
      env[variable] = value
      return [header, variable] as const
    })
    servers[name] = { ...common, url, env_http_headers: Object.fromEntries(fromEnv) }
  }
  let sessionServer = 'runner'
  while (sessionServer in servers) sessionServer += '_'
  if (sessionMcpUrl !== undefined) {
    if (sessionMcpToken !== undefined) env[variables.toolsToken] = sessionMcpToken
    const token = sessionMcpToken === undefined ? {} : { bearer_token_env_var: variables.toolsToken }
    // Otherwise a refused token would cost the run its tools and nothing would say so.
    servers[sessionServer] = { ...common, url: sessionMcpUrl, ...token, required: true }
  }
  return { servers, sessionServer, env }
}
