import { type StaticDecode, Type } from '@sinclair/typebox'
import { Base64Secret, Duration, Settings } from '#kernel'
import { createKeyring, type Keyring } from './envelope.ts'

export const SecretSettings = Settings({
  masterKey: Type.Optional(
    Base64Secret(
      'AGENT_ORC_MASTER_KEY: encrypts the data keys of secrets. Without it the routes of secrets answer 503.',
    ),
  ),
  masterKeyPrevious: Type.Optional(
    Base64Secret(
      'AGENT_ORC_MASTER_KEY_PREVIOUS: still decrypts, until `agent-orc secrets rewrap` has moved everything to the current key.',
    ),
  ),
  keepVersions: Type.Integer({
    minimum: 1,
    maximum: 100,
    default: 10,
    description: 'How many values of a secret are kept, including the current one.',
  }),
  cacheFor: Duration('10s', 'How long a value is cached in plain text; a write invalidates it at once.'),
  cacheBytes: Type.Integer({
    minimum: 0,
    maximum: 1024 ** 3,
    default: 4 * 1024 ** 2,
    description: 'Memory for them; with 0 each use is a round trip.',
  }),
})
type Keys = Pick<StaticDecode<typeof SecretSettings>, 'masterKey' | 'masterKeyPrevious'>

/** Undefined without a master key. Throws when only a previous master key is set. */
export function keyringOf({ masterKey, masterKeyPrevious }: Keys): Keyring | undefined {
  if (masterKey) return createKeyring(masterKey, masterKeyPrevious)
  if (masterKeyPrevious) throw new Error('there is a previous master key but no current one; set AGENT_ORC_MASTER_KEY')
  return undefined
}
