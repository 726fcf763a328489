import { type Static, Type } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import type { App } from '../http/app.ts'
import { capability } from '../plugin.ts'
import type { TenantTx } from './database.ts'

/** RBAC roles, weakest first. Specification 2.3. */
export const roles = ['member', 'admin', 'owner'] as const
export type TenantRole = (typeof roles)[number]
export const roleAtLeast = (role: TenantRole, needed: TenantRole): boolean =>
  roles.indexOf(role) >= roles.indexOf(needed)
/**
 * The access of routes that concern the whole installation: admins of the tenant `AGENT_ORC_ADMIN_TENANT`. For all other callers such a route does
 * not exist. Specification 5.1.
 */
export const operator = 'operator'

/** Who makes a request. The guard authenticates the caller and never uses what the client claims. */
export interface Caller {
  readonly tenantId: string
  readonly role: TenantRole
  /** `tak_…` of the key, or the name of the service on the signed plane. */
  readonly keyId: string
  /** What the key may call in the tenant's MCP catalog and apps. Absent: everything. */
  readonly mcp?: McpPermissions
}

/** The limits of a key at the endpoint of the MCP catalog and at the routes of apps. An absent field limits nothing. */
export interface McpPermissions {
  /** Names of entries. */
  readonly servers?: readonly string[]
  /** The permitted tools of each entry, by the entry's name. An absent entry is not limited. */
  readonly tools?: Readonly<Record<string, readonly string[]>>
}
export const permitsServer = (mcp: McpPermissions | undefined, server: string): boolean =>
  !mcp?.servers || mcp.servers.includes(server)
export const permitsTool = (mcp: McpPermissions | undefined, server: string, tool: string): boolean =>
  permitsServer(mcp, server) && (!mcp?.tools || !Object.hasOwn(mcp.tools, server) || mcp.tools[server]!.includes(tool))

/**
 * Protects a Fastify scope: every route in it needs `access(role)` or `access(operator)`, and every request is authenticated before its
 * handler. Guards work per plugin scope, never by URL text.
 */
export interface Guard {
  protect(app: App): void
  /** The caller of a request that passed `protect`; throws when the route was never protected. */
  callerOf(request: FastifyRequest): Caller
}

/** Bearer keys of the conductor's public listener. Specification 5.1. */
export const ApiGuard = capability<Guard>('conductor.api-guard')
/** HMAC signatures of the conductor's internal listener, chat-gateway family; every caller acts as admin of the signed tenant. Specification 5.3. */
export const InternalGuard = capability<Guard>('conductor.internal-guard')
/** The access of routes for callers that sign with the family `vfs`. No other caller has it, not even a gateway. */
export const vfsService = 'vfs-service'
/** HMAC signatures of the conductor's internal listener, family `vfs`, for routes of `vfsService`. Specification 5.3. */
export const VfsGuard = capability<Guard>('conductor.vfs-guard')

/**
 * Matches the token of an Authorization header in the form of RFC 9110, without quotes, commas or control characters. A listener joins headers that are sent twice with a comma, so that two tokens are refused.
 */
export const bearerForm = /^Bearer +([A-Za-z0-9._~+/-]+=*)$/i

/** Mints and checks `ao_<env>_<43 base62><6 base62 CRC32>` tokens; hashes them with the pepper. */
export interface Tokens {
  mint(): string
  /** False for text that cannot be a token of this server, which saves the look-up. */
  wellFormed(token: string): boolean
  /** HMAC-SHA256(pepper, `<domain>\0<token>`). */
  hash(domain: TokenDomain, token: string): Buffer
}
/** Published-agent keys and tenant keys hash under different domains, so one can never be used as the other. */
export type TokenDomain = 'ao:pub-key:v1' | 'ao:tenant-key:v1'
export const Tokens = capability<Tokens>('core.tokens')

/** The requested expiry of a key. */
export const keyExpiry = Type.String({
  pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}(:\\d{2}(\\.\\d{1,9})?)?(Z|[+-]\\d{2}:\\d{2})$',
  description:
    'ISO 8601 with a zone, in the future, and not later than the expiry of the calling key. By default the latest allowed time: that of the calling key, the longest lifetime of this server, or never.',
})

/** How a key is replaced by another one. */
export const KeyRotation = Type.Object(
  {
    graceSeconds: Type.Integer({
      minimum: 0,
      maximum: 604_800,
      default: 0,
      description: 'How long the old key still works beside the new one: at most a week.',
    }),
  },
  { additionalProperties: false },
)
export type KeyRotation = Static<typeof KeyRotation>

/** Issues keys of tenants for callers that may grant them. */
export interface KeyIssuer {
  /**
   * When a key that `caller` issues expires, if ever: at the requested time, or at the latest time that the caller's own key allows. Rejects with
   * 400 for a time in the past or after that latest time, and with 401 if the caller's key was revoked. No key of the tenant is revoked until the
   * transaction ends, so store the new key in it: otherwise a revocation could miss it. Call it first in the transaction.
   */
  expiryFor(tx: TenantTx, caller: Caller, asked: string | undefined): Promise<Date | undefined>
  /**
   * Issues the first key of a tenant, with the role owner and the longest lifetime that the server allows. The token is shown once. `createdBy` is
   * the key that requested it.
   */
  issueOwner(
    tenantId: string,
    createdBy: string,
  ): Promise<{ readonly id: string; readonly token: string; readonly expiresAt: string | null }>
}
export const KeyIssuer = capability<KeyIssuer>('conductor.key-issuer')
