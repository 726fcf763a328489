import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'
import { type Sealer, secretErrors } from '#contracts/secrets'

/** Which value something is encrypted for: no other row can be decrypted with it. */
export interface Owner {
  readonly tenantId: string
  readonly name: string
  readonly version: number
}

/** A data key as it is stored: a nonce of 12 bytes, the encrypted bytes, and a tag of 16. */
export interface Wrapped {
  /** The id of the master key. */
  readonly masterKey: string
  readonly wrappedKey: Buffer
}
/** A value as it is stored, in the same form, with its data key. */
export interface Sealed extends Wrapped {
  readonly ciphertext: Buffer
}

/** The master keys of a process. AES-256-GCM throughout; invariants K1 and K3, ADR 56. */
export interface Keyring {
  /** The id of the key that encrypts. */
  readonly current: string
  /** The id of the other key that decrypts, while master keys are changed. */
  readonly previous: string | undefined
  seal(owner: Owner, value: Buffer): Sealed
  /** `secret_unreadable` (503) without the master key, or when anything of it was changed or moved. */
  open(owner: Owner, sealed: Sealed): Buffer
  /** The data key under the current master key; as `open`. The value itself is not needed. */
  rewrap(owner: Owner, wrapped: Wrapped): Wrapped
}

interface MasterKey {
  readonly id: string
  readonly wrapping: Buffer
}

const derived = (master: Buffer, purpose: string, bytes: number): Buffer =>
  Buffer.from(hkdfSync('sha256', master, '', `ao/secrets/${purpose}/v1`, bytes))

// The id says which key it is and nothing about the key, so nobody has to name keys.
const masterKey = (master: Buffer): MasterKey => ({
  id: `mk_${derived(master, 'kid', 8).toString('hex')}`,
  wrapping: derived(master, 'kek', 32),
})

export function createKeyring(currentMaster: Buffer, previousMaster?: Buffer): Keyring {
  const current = masterKey(currentMaster)
  const other = previousMaster && masterKey(previousMaster)
  const previous = other?.id === current.id ? undefined : other
  const keys = new Map([...(previous ? [previous] : []), current].map((key) => [key.id, key.wrapping]))

  const unwrap = (owner: Owner, { masterKey: id, wrappedKey }: Wrapped): Buffer => {
    const wrapping = keys.get(id)
    if (!wrapping)
      throw unreadable(
        owner,
        `is encrypted with the master key ${id}, and this server has ${[...keys.keys()].join(' and ')}`,
      )
    return decrypt(wrapping, dataKeyOf(owner), wrappedKey, owner)
  }
  const wrap = (owner: Owner, dataKey: Buffer): Wrapped => ({
    masterKey: current.id,
    wrappedKey: encrypt(current.wrapping, dataKeyOf(owner), dataKey),
  })
  return {
    current: current.id,
    previous: previous?.id,
    seal(owner, value) {
      const dataKey = randomBytes(32)
      return { ...wrap(owner, dataKey), ciphertext: encrypt(dataKey, valueOf(owner), value) }
    },
    open: (owner, sealed) => decrypt(unwrap(owner, sealed), valueOf(owner), sealed.ciphertext, owner),
    rewrap: (owner, wrapped) => wrap(owner, unwrap(owner, wrapped)),
  }
}

const locked = (): never => {
  throw secretErrors.secretsUnavailable()
}
/** Where there is no master key. */
export const noKeyring: Keyring = { current: '', previous: undefined, seal: locked, open: locked, rewrap: locked }

// What is authenticated is rebuilt from the row, never stored: bytes that were moved to another row fit nowhere.
const bound = (what: string, { tenantId, name, version }: Owner): Buffer =>
  Buffer.from(JSON.stringify([what, tenantId, name, version]))
const dataKeyOf = (owner: Owner): Buffer => bound('ao.secret.key.v1', owner)
const valueOf = (owner: Owner): Buffer => bound('ao.secret.v1', owner)

const nonceBytes = 12
const tagBytes = 16

function encrypt(key: Buffer, authenticated: Buffer, plain: Buffer): Buffer {
  const nonce = randomBytes(nonceBytes)
  const cipher = createCipheriv('aes-256-gcm', key, nonce, { authTagLength: tagBytes }).setAAD(authenticated)
  return Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()])
}

function decrypt(key: Buffer, authenticated: Buffer, bytes: Buffer, owner: Owner): Buffer {
  const nonce = bytes.subarray(0, nonceBytes)
  const end = Math.max(nonceBytes, bytes.length - tagBytes)
  try {
    const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: tagBytes }).setAAD(authenticated)
    decipher.setAuthTag(bytes.subarray(end))
    return Buffer.concat([decipher.update(bytes.subarray(nonceBytes, end)), decipher.final()])
  } catch {
    throw unreadable(owner, 'was changed in the database, or encrypted for another row')
  }
}

const unreadable = ({ name, version }: Owner, why: string) =>
  secretErrors.secretUnreadable({ message: `Version ${version} of the secret '${name}' ${why}.` })

// No secret has a name with a slash, so none of these opens as a secret, nor the other way round.
const ownerOf = (tenantId: string, name: string): Owner => ({ tenantId, name: `sealed/${name}`, version: 1 })

function inOne({ masterKey, wrappedKey, ciphertext }: Sealed): string {
  return [masterKey, wrappedKey.toString('base64url'), ciphertext.toString('base64url')].join('.')
}
function partsOf(sealed: string): Sealed {
  const [masterKey = '', wrappedKey = '', ciphertext = ''] = sealed.split('.')
  const bytes = (text: string): Buffer => Buffer.from(text, 'base64url')
  return { masterKey, wrappedKey: bytes(wrappedKey), ciphertext: bytes(ciphertext) }
}

/** Seals texts of other plugins: master key, wrapped data key and ciphertext in one, with dots between. */
export function createSealer(keyring: Keyring): Sealer {
  return {
    seal: (tenantId, name, value) => inOne(keyring.seal(ownerOf(tenantId, name), Buffer.from(value))),
    open(tenantId, name, sealed) {
      try {
        return keyring.open(ownerOf(tenantId, name), partsOf(sealed)).toString()
      } catch {
        return undefined
      }
    },
  }
}

/** What a sealer sealed, under the current master key; as `Keyring.rewrap`. */
export function resealed(keyring: Keyring, tenantId: string, name: string, sealed: string): string {
  const parts = partsOf(sealed)
  return inOne({ ...parts, ...keyring.rewrap(ownerOf(tenantId, name), parts) })
}
