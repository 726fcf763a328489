import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'

export const egressErrors = errorTable('egress', {
  invalidEgress: {
    status: 400,
    about:
      'The field `egress` of the profile names a host that sandboxes of this tenant may not reach; the sentence says which and why.',
  },
})

/** Without TRACE, whose answer repeats the request with its secrets, and CONNECT, which hides the traffic. */
export const egressMethods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] as const

/** Shorter values are never sent: they occur in too much other text to be recognized in a host's answers. */
export const shortestSecret = 8
/** The largest value of a secret in a header, in characters of one byte. Servers accept no more. */
export const longestSecret = 16 * 1024
/** The most secrets that one host is sent: every answer of the host is searched for each form of each of them. */
export const mostSecretsOfHost = 8

/** Hop-by-hop headers, which proxies do not pass on. */
export const connectionHeaders: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

const label = '[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?'

/** A host that sandboxes of a profile may reach, in the form that clients write. */
export const EgressEntry = Type.Object(
  {
    host: Type.String({
      maxLength: 260,
      pattern: `^((\\*\\.)?${label}(\\.${label})*|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?$`,
      description:
        '`api.github.com`, with a port unless it is 443: `gitea.internal:3000`. `*.example.com` is every name below example.com; it allows no headers.',
    }),
    paths: Type.Optional(
      Type.Array(
        Type.String({
          maxLength: 512,
          pattern: '^/[\\x21\\x22\\x24-\\x3e\\x40-\\x5b\\x5d-\\x7e]*$',
          description:
            'A path and everything below it: `/repos/acme` includes `/repos/acme/x`, but not `/repos/acme2`.',
        }),
        { minItems: 1, maxItems: 50, description: 'Any path by default.' },
      ),
    ),
    methods: Type.Optional(
      Type.Array(Type.Union(egressMethods.map((method) => Type.Literal(method))), {
        minItems: 1,
        uniqueItems: true,
        description: 'Any of them by default.',
      }),
    ),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String({ maxLength: 4_096 }), {
        maxProperties: 20,
        additionalProperties: false,
        description:
          'Headers that the runner adds to each request, replacing those of the sandbox: `{"authorization": "Bearer secret://github"}`.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type EgressEntry = Static<typeof EgressEntry>

/** An entry in the form for runners: host and port are separate, and it says whether the operator allows a private address. */
export const EgressHost = Type.Object({
  ...Type.Omit(EgressEntry, ['host']).properties,
  /** Lower case; `*.example.com` stands for every name below it. */
  host: Type.String(),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
  own: Type.Boolean(),
})
export type EgressHost = Static<typeof EgressHost>

/** What a run's sandbox may reach. It is sent for each attempt, and is never part of a row, event, log or saved state. */
export const EgressOrder = Type.Object({
  /** The headers of these hosts still refer to secrets. */
  hosts: Type.Array(EgressHost),
  /** The plain values of the secrets, by name. */
  secrets: Type.Record(Type.String(), Type.String()),
})
export type EgressOrder = Static<typeof EgressOrder>

/** How programs in a sandbox reach hosts while the key's run is under way. */
export const EgressAccess = Type.Object({
  /** The value for `http_proxy`. It contains the key. */
  proxyUrl: Type.String(),
  /** `<baseUrl>/<host>/<path>` stands for `https://<host>/<path>`, for programs that do not support proxies. */
  baseUrl: Type.String(),
  key: Type.String(),
})
export type EgressAccess = Static<typeof EgressAccess>

/** The fields of a profile about egress. */
interface WithEgress {
  readonly egress?: readonly EgressEntry[] | undefined
  readonly workerMode: 'static' | 'sandbox'
}

/** Checks and resolves the hosts that sandboxes of profiles may reach. */
export interface Egress {
  /** AppErrors: 400 `invalid_egress`, 400 `unknown_secret: NAME`, 503 `secrets_unavailable`. */
  check(tenantId: string, profile: WithEgress): Promise<void>
  /**
   * Called for each attempt, so that a changed secret takes effect with the next attempt. Entries that the tenant may no longer use are left out.
   * Rejects as `Secrets.headers` does.
   */
  resolve(tenantId: string, entries: readonly EgressEntry[]): Promise<EgressOrder>
}
export const Egress = capability<Egress>('conductor.egress')
