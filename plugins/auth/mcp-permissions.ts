import { invalidField } from '#kernel'
import type { McpPermissions } from '#contracts/auth'
import type { IssueBody } from './keys.schema.ts'

/** The most bytes of a key's MCP permissions. They are bounded, because every request with the key reads them. */
const maxBytes = 16 * 1024

/** The columns of MCP permissions in a key's row. Null: the key may use everything. */
export interface PermissionColumns {
  readonly mcp_servers: readonly string[] | null
  readonly mcp_tool_permissions: Readonly<Record<string, readonly string[]>> | null
}

/** The MCP permissions in a key's row. Undefined: the key may use everything. */
export function permissionsOf(row: PermissionColumns): McpPermissions | undefined {
  const { mcp_servers: servers, mcp_tool_permissions: tools } = row
  if (!servers && !tools) return undefined
  return { ...(servers ? { servers } : {}), ...(tools ? { tools } : {}) }
}

export const columnsOf = ({ servers, tools }: McpPermissions = {}): PermissionColumns => ({
  mcp_servers: servers && servers.length > 0 ? servers : null,
  mcp_tool_permissions: tools && Object.keys(tools).length > 0 ? tools : null,
})

/**
 * The MCP permissions of a new key: the requested ones, which must be within its issuer's. 400 for permissions beyond the issuer's, and for more
 * than 16 KiB.
 */
export function issuedPermissions(
  { mcpServers: servers = [], mcpToolPermissions: tools = {} }: IssueBody,
  issuer: McpPermissions = {},
): McpPermissions {
  const beyond = issuer.servers && servers.find((name) => !issuer.servers!.includes(name))
  if (beyond !== undefined) throw outOfBounds('body/mcpServers', beyond)
  for (const [name, asked] of Object.entries(tools)) {
    const most = issuer.tools && Object.hasOwn(issuer.tools, name) ? issuer.tools[name]! : asked
    const tool = asked.find((one) => !most.includes(one))
    if (tool !== undefined) throw outOfBounds(`body/mcpToolPermissions/${name}`, tool)
  }
  const permissions = {
    servers: servers.length > 0 ? servers : (issuer.servers ?? []),
    tools: { ...issuer.tools, ...tools },
  }
  if (Buffer.byteLength(JSON.stringify(permissions)) > maxBytes) {
    throw invalidField('body', `must not name more MCP servers and tools than fit into ${maxBytes} bytes`)
  }
  return permissions
}

const outOfBounds = (field: string, name: string) =>
  invalidField(field, `must not have '${name}', which the calling key may not use`)
