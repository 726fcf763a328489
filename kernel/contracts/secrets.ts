import { capability } from '../plugin.ts'
import { errorTable } from './errors.ts'

export const secretErrors = errorTable('secrets', {
  invalidRef: {
    status: 400,
    message: 'A reference consists of secret:// and the name of a secret only.',
  },
  unknownSecret: {
    named: true,
    status: 400,
    message: 'This tenant has no secret with that name; create it with POST /api/secrets.',
  },
  secretExpired: {
    status: 410,
    about: 'The secret has expired and is no longer used; the sentence names it. Write a new value.',
  },
  secretUnfit: {
    status: 422,
    about: 'The value of the secret cannot be used where it is referenced; the sentence says why.',
  },
  secretUnreadable: {
    status: 503,
    retry: 'later',
    about: 'The secret is encrypted with a master key that this server does not have; the sentence names both.',
  },
  secretsUnavailable: {
    status: 503,
    message: 'Secrets need a PostgreSQL database and AGENT_ORC_MASTER_KEY on the conductor.',
  },
})

export const secretNamePattern = '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$'
const nameForm = new RegExp(secretNamePattern)
/** False for text that cannot name a secret, which saves the look-up. */
export const isSecretName = (text: string): boolean => nameForm.test(text)

const scheme = 'secret://'
/** The name in a text that is a single reference. Undefined for other text, such as one with `${…}` in it. */
export function secretOf(reference: string): string | undefined {
  if (!reference.startsWith(scheme)) return undefined
  const name = reference.slice(scheme.length)
  return isSecretName(name) ? name : undefined
}

/** A reference within other text. It ends where a header separates words. */
const references = /secret:\/\/([^\s,;"']*)/g

/** The secret names in a text such as `Bearer secret://github`. Throws `invalidRef` (400) for `secret://` without a name. */
export function secretsIn(text: string): readonly string[] {
  return [...text.matchAll(references)].map(([, name = '']) => {
    if (!isSecretName(name)) throw secretErrors.invalidRef()
    return name
  })
}

/** The text with each reference replaced. */
export const withSecrets = (text: string, valueOf: (name: string) => string): string =>
  text.replaceAll(references, (_, name: string) => valueOf(name))

export interface ResolvedSecret {
  readonly name: string
  readonly version: number
  readonly value: string
  /** The value that this one replaced less than a day ago, because a verifier may not know the new value yet. */
  readonly previous?: string
}

export type HeaderMap = Readonly<Record<string, string>>

/**
 * The secrets of tenants in plain text, for plugins that use them. Neither the values nor anything derived from them may reach a log, an event, a
 * row or an error. Values stay in memory for seconds; a write reaches every reachable conductor at once. `reader` names the purpose (`webhooks`,
 * `mcp-servers/github`), so that admins see when each purpose last read a secret.
 */
export interface Secrets {
  /** Those of `names` that a tenant does not have. `secrets_unavailable` (503) when no secret can be looked up. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** Rejects with `unknown_secret` (400), `secret_expired` (410), `secret_unreadable` or `secrets_unavailable` (503). */
  resolve(tenantId: string, name: string, reader: string): Promise<ResolvedSecret>
  /** The headers with references replaced. Rejects like `resolve`, and with `secret_unfit` (422) for a value that a header cannot hold. */
  headers(tenantId: string, headers: HeaderMap, reader: string): Promise<Record<string, string>>
}
export const Secrets = capability<Secrets>('conductor.secrets')

/**
 * Encrypts what a plugin stores for a tenant in its own table, under the same master key as secrets. Sealed data opens only for the same tenant and
 * name.
 */
export interface Sealer {
  /** `secrets_unavailable` (503) without a master key. `name` says what is sealed, e.g. `mcp-tokens/github`. */
  seal(tenantId: string, name: string, value: string): string
  /** Undefined when the data cannot be opened: it was sealed with another master key, or for another tenant or name. */
  open(tenantId: string, name: string, sealed: string): string | undefined
}
export const Sealer = capability<Sealer>('conductor.sealer')
