import { createHmac, hkdfSync } from 'node:crypto'
import { secretErrors, secretOf, type Secrets } from '#contracts/secrets'
import type { SigningState } from './secrets.store.ts'

/** The keys that sign messages: derived from the key of the installation, or from a secret of the tenant. */
export interface SigningSecrets {
  /** The secret as receivers configure it: `whsec_…`, or the reference to the tenant's own secret. */
  shown(tenantId: string, state: SigningState): string
  /** The keys that sign a message: the current one, and the previous one for 24 hours after a change. Rejects as `Secrets.resolve`. */
  keys(tenantId: string, state: SigningState): Promise<readonly Buffer[]>
  /** Rejects for a reference that cannot sign: `invalid_ref` or `unknown_secret` (400), `secret_unfit` (422). */
  check(tenantId: string, ref: string): Promise<void>
}

const reader = 'webhooks'

export function createSigningSecrets(key: Buffer, secrets: Secrets | undefined): SigningSecrets {
  const derive = (tenantId: string, version: number): Buffer =>
    Buffer.from(hkdfSync('sha256', key, '', `ao/webhook/v1\0${tenantId}\0${version}`, 32))

  const ofSecret = async (tenantId: string, ref: string): Promise<readonly Buffer[]> => {
    if (!secrets) throw secretErrors.secretsUnavailable()
    const name = secretOf(ref)
    if (name === undefined) throw secretErrors.invalidRef()
    const { value, previous } = await secrets.resolve(tenantId, name, reader)
    const now = keyOf(value)
    if (!now) throw unfit(name)
    const before = previous === undefined ? undefined : keyOf(previous)
    return before ? [now, before] : [now]
  }
  return {
    shown: (tenantId, { ref, version }) => ref ?? `whsec_${derive(tenantId, version).toString('base64')}`,
    async keys(tenantId, { ref, version, previousRef, previousUntil }) {
      const now = ref === null ? [derive(tenantId, version)] : await ofSecret(tenantId, ref)
      if (previousUntil === null) return now
      // If the previous secret no longer exists, the message goes without its signature.
      const before =
        previousRef === null ? [derive(tenantId, version - 1)] : await ofSecret(tenantId, previousRef).catch(() => [])
      return [...now, ...before]
    },
    async check(tenantId, ref) {
      await ofSecret(tenantId, ref)
    },
  }
}

/** `v1,<base64>`: HMAC-SHA256 over `id.timestamp.body`, one for each key. Standard Webhooks. */
export const signatures = (keys: readonly Buffer[], id: string, timestamp: number, body: string): string =>
  keys
    .map((key) => createHmac('sha256', key).update(`${id}.${timestamp}.${body}`))
    .map((mac) => `v1,${mac.digest('base64')}`)
    .join(' ')

// Standard Webhooks: a key has 24 to 64 bytes, which are 32 to 88 characters of base64.
const keyForm = /^whsec_([A-Za-z0-9+/]{32,86}={0,2})$/
const keyOf = (value: string): Buffer | undefined => {
  const [, text] = keyForm.exec(value) ?? []
  return text === undefined ? undefined : Buffer.from(text, 'base64')
}

const unfit = (name: string) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' cannot sign webhooks: it has to be whsec_ and base64 of 24 to 64 bytes.`,
  })
