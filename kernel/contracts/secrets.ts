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
/** The name in a reference that is nothing else; undefined for other text, such as one with `${…}` in it. */
export function secretOf(reference: string): string | undefined {
  if (!reference.startsWith(scheme)) return undefined
  const name = reference.slice(scheme.length)
  return isSecretName(name) ? name : undefined
}

/** A reference among other text: it ends where a header separates words. */
const references = /secret:\/\/([^\s,;"']*)/g

/** The names that a text refers to, as in `Bearer secret://github`. `invalidRef` (400) for `secret://` without a name. */
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
  /** The value that this one replaced less than a day ago: who verifies may not know the new one yet. */
  readonly previous?: string
}

export type HeaderMap = Readonly<Record<string, string>>

/**
 * The secrets of tenants, in plain text, for plugins that use them: neither these values nor anything derived from them may get into a
 * log, an event, a row or an error. Values are kept in memory for seconds; a write reaches every reachable conductor at
 * once. `reader` says what a value is for (`webhooks`, `mcp-servers/github`): admins see when each read a secret last.
 */
export interface Secrets {
  /** The names that a tenant does not have; `secrets_unavailable` (503) where nothing can be looked up. */
  unknown(tenantId: string, names: readonly string[]): Promise<readonly string[]>
  /** `unknown_secret` (400), `secret_expired` (410), `secret_unreadable` or `secrets_unavailable` (503). */
  resolve(tenantId: string, name: string, reader: string): Promise<ResolvedSecret>
  /** Headers with their references replaced; as `resolve`, and `secret_unfit` (422) for a value that no header may have. */
  headers(tenantId: string, headers: HeaderMap, reader: string): Promise<Record<string, string>>
}
export const Secrets = capability<Secrets>('conductor.secrets')

/**
 * Encrypts what a plugin keeps for a tenant in a table of its own, under the master key, as secrets are. Sealed data opens only for the
 * same tenant and name.
 */
export interface Sealer {
  /** `secrets_unavailable` (503) without a master key. `name` tells what it is of, e.g. `mcp-tokens/github`. */
  seal(tenantId: string, name: string, value: string): string
  /** Undefined when it cannot be opened: another master key, or bytes of another tenant or name. */
  open(tenantId: string, name: string, sealed: string): string | undefined
}
export const Sealer = capability<Sealer>('conductor.sealer')
