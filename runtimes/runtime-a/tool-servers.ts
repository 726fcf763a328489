import type { McpServer, UnavailableMcpServer } from '#contracts/mcp-servers'
import { type RunEnvelope, toolsUrlOf } from '#contracts/run-envelope'
import type { HttpServer, Init } from './sdk.ts'
import { runtimeAErrors } from './errors.ts'

export interface ToolServers {
  readonly config: Readonly<Record<string, HttpServer>>
  /** Variables with addresses and credentials. On a command line every user of the machine could read them. */
  readonly env: Readonly<Record<string, string>>
  readonly allowed: readonly string[]
  /** The name of a tool in the session. */
  plainName(name: string): string
  /** Whether the session's own tools are connected. */
  connected(init: Init): boolean
  /** External servers without which the run continues. */
  unavailable(init: Init): readonly UnavailableMcpServer[]
}

/** The vendor's name for the session's MCP endpoint. */
const own = 'runner'
const prefix = `mcp__${own}__`
/** Together with the longest tool names this fits the limits of model servers. */
const maxNameChars = 32
/** The longest delay of a timer, in milliseconds. */
const maxMs = 2_147_483_647

/** The MCP servers of a run. The vendor replaces `${NAME}` in server settings by variables, so settings that contain such text are refused. */
export function toolServers(
  envelope: Pick<
    RunEnvelope,
    'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'mcpUnavailable' | 'timeoutMs'
  >,
): ToolServers {
  const { sessionMcpToken, mcpServers = [], mcpUnavailable = [], timeoutMs } = envelope
  const sessionMcpUrl = toolsUrlOf(envelope)
  const config: Record<string, HttpServer> = {}
  const env: Record<string, string> = {}
  const names = new Map<string, string>()
  const unsafe = [...mcpUnavailable]
  const hidden = (value: string): string => {
    const variable = `AGENT_ORC_MCP_${Object.keys(env).length}`
    env[variable] = value
    return `\${${variable}}`
  }
  const allowed: string[] = []
  const add = (
    key: string,
    url: string,
    headers: Readonly<Record<string, string>>,
    { transport, tools }: Pick<McpServer, 'transport' | 'tools'> = {},
  ): boolean => {
    if ([url, ...Object.entries(headers).flat()].some((text) => text.includes('${'))) return false
    const shown = Object.entries(headers).map(([name, value]) => [name, hidden(value)])
    const timeout = Math.min(Math.max(timeoutMs, 1_000), maxMs)
    const type = transport ?? 'http'
    config[key] = { type, url: hidden(url), headers: Object.fromEntries(shown), alwaysLoad: true, timeout }
    allowed.push(...(tools ? tools.map(({ name }) => `mcp__${key}__${name}`) : [`mcp__${key}__*`]))
    return true
  }
  if (sessionMcpUrl !== undefined) {
    const headers = sessionMcpToken === undefined ? {} : { authorization: `Bearer ${sessionMcpToken}` }
    if (!add(own, sessionMcpUrl, headers)) throw runtimeAErrors.unsupportedMcpCredential()
  }
  for (const server of mcpServers) {
    const { name, url, headers = {} } = server
    const key = vendorName(name, config)
    if (holdsBack(server)) unsafe.push({ server: name, message: cannotHoldBack })
    else if (add(key, url, headers, server)) names.set(key, name)
    else unsafe.push({ server: name, message: unusable(name) })
  }
  const status = ({ mcp_servers: all }: Init, key: string): boolean =>
    all.some((server) => server.name === key && server.status === 'connected')
  return {
    config,
    env,
    allowed,
    plainName: (name) => (name.startsWith(prefix) ? name.slice(prefix.length) : name),
    connected: (init) => sessionMcpUrl === undefined || status(init, own),
    unavailable: (init) => [
      ...unsafe,
      ...[...names]
        .filter(([key]) => !status(init, key))
        .map(([, name]) => ({ server: name, message: unusable(name) })),
    ],
  }
}

/** The vendor's program reads definitions itself, so a changed one could not be withheld from its model. */
const holdsBack = ({ tools = [] }: McpServer): boolean => tools.some(({ digest }) => digest !== undefined)
const cannotHoldBack = 'This runtime cannot withhold tools that need a review; use the runtime general.'
const unusable = (name: string): string =>
  `The MCP server '${name}' cannot be used; the run continues without its tools.`

/** A unique name in letters that the vendor accepts. It is no prefix of another server's name. */
function vendorName(name: string, taken: Readonly<Record<string, unknown>>): string {
  const single = name.replaceAll(/_{2,}/g, '_').slice(0, maxNameChars)
  const plain = single.replaceAll(/^_|_$/g, '') || 'server'
  let key = plain
  for (let n = 2; Object.hasOwn(taken, key) || key === own; n++) key = `${plain}-${n}`
  return key
}
