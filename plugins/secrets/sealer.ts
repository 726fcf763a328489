import type { Sealer } from '#contracts/secrets'
import type { Keyring, Owner } from './envelope.ts'

/** Seals texts of other plugins: master key, wrapped data key and ciphertext in one, with dots between. */
export function createSealer(keyring: Keyring): Sealer {
  // No secret has a name with a slash, so none of these opens as a secret, nor the other way round.
  const ownerOf = (tenantId: string, name: string): Owner => ({ tenantId, name: `sealed/${name}`, version: 1 })
  return {
    seal(tenantId, name, value) {
      const { masterKey, wrappedKey, ciphertext } = keyring.seal(ownerOf(tenantId, name), Buffer.from(value))
      return [masterKey, wrappedKey.toString('base64url'), ciphertext.toString('base64url')].join('.')
    },
    open(tenantId, name, sealed) {
      const [masterKey = '', wrappedKey = '', ciphertext = ''] = sealed.split('.')
      const bytes = (text: string): Buffer => Buffer.from(text, 'base64url')
      try {
        const stored = { masterKey, wrappedKey: bytes(wrappedKey), ciphertext: bytes(ciphertext) }
        return keyring.open(ownerOf(tenantId, name), stored).toString()
      } catch {
        return undefined
      }
    },
  }
}
