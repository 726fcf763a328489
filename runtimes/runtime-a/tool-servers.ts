import { type RunEnvelope, toolsUrlOf } from '#contracts/run-envelope'
import type { HttpServer, Init } from './sdk.ts'
import { runtimeAErrors } from './errors.ts'

export interface ToolServers {
  readonly config: Readonly<Record<string, HttpServer>>
  /** Variables with addresses and credentials: on a command line everybody on the machine could read them. */
  readonly env: Readonly<Record<string, string>>
  readonly allowed: readonly string[]
  /** A tool as the session knows it. */
  plainName(name: string): string
  /** Whether the session's own tools are there. */
  connected(init: Init): boolean
  /** External servers without which the run goes on. */
  unavailable(init: Init): readonly string[]
}

/** The vendor's name for the session's MCP endpoint. */
const own = 'runner'
const prefix = `mcp__${own}__`
/** Together with the longest names of tools it fits what model servers take. */
const maxNameChars = 32
/** The longest that a timer takes. */
const maxMs = 2_147_483_647

/** The MCP servers of a run. The vendor replaces `${NAME}` in their settings by variables, so settings with that text are refused. */
export function toolServers(
  envelope: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'timeoutMs'>,
): ToolServers {
  const { sessionMcpToken, mcpServers = [], timeoutMs } = envelope
  const sessionMcpUrl = toolsUrlOf(envelope)
  const config: Record<string, HttpServer> = {}
  const env: Record<string, string> = {}
  const names = new Map<string, string>()
  const unsafe: string[] = []
  const hidden = (value: string): string => {
    const variable = `AGENT_ORC_MCP_${Object.keys(env).length}`
    env[variable] = value
    return `\${${variable}}`
  }
  const add = (key: string, url: string, headers: Readonly<Record<string, string>>): boolean => {
    if ([url, ...Object.entries(headers).flat()].some((text) => text.includes('${'))) return false
    const shown = Object.entries(headers).map(([name, value]) => [name, hidden(value)])
    const timeout = Math.min(Math.max(timeoutMs, 1_000), maxMs)
    config[key] = { type: 'http', url: hidden(url), headers: Object.fromEntries(shown), alwaysLoad: true, timeout }
    return true
  }
  if (sessionMcpUrl !== undefined) {
    const headers = sessionMcpToken === undefined ? {} : { authorization: `Bearer ${sessionMcpToken}` }
    if (!add(own, sessionMcpUrl, headers)) throw runtimeAErrors.unsupportedMcpCredential()
  }
  for (const { name, url, headers = {} } of mcpServers) {
    const key = vendorName(name, config)
    if (add(key, url, headers)) names.set(key, name)
    else unsafe.push(name)
  }
  const status = ({ mcp_servers: all }: Init, key: string): boolean =>
    all.some((server) => server.name === key && server.status === 'connected')
  return {
    config,
    env,
    allowed: Object.keys(config).map((key) => `mcp__${key}__*`),
    plainName: (name) => (name.startsWith(prefix) ? name.slice(prefix.length) : name),
    connected: (init) => sessionMcpUrl === undefined || status(init, own),
    unavailable: (init) => [...unsafe, ...[...names].filter(([key]) => !status(init, key)).map(([, name]) => name)],
  }
}

/** A unique name of letters that the vendor takes, which is no prefix of another server's name. */
function vendorName(name: string, taken: Readonly<Record<string, unknown>>): string {
  const single = name.replaceAll(/_{2,}/g, '_').slice(0, maxNameChars)
  const plain = single.replaceAll(/^_|_$/g, '') || 'server'
  let key = plain
  for (let n = 2; Object.hasOwn(taken, key) || key === own; n++) key = `${plain}-${n}`
  return key
}
