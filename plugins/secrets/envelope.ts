import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'
import { type Sealer, secretErrors } from '#contracts/secrets'

/** The row that a value is encrypted for. The value cannot be decrypted as part of any other row. */
export interface Owner {
  readonly tenantId: string
  readonly name: string
  readonly version: number
}

/** A data key as it is stored: a nonce of 12 bytes, the encrypted bytes, and a tag of 16. */
export interface Wrapped {
  /** The id of the master key that wraps it. */
  readonly masterKey: string
  readonly wrappedKey: Buffer
}
/** An encrypted value in the same form, with its wrapped data key. */
export interface Sealed extends Wrapped {
  readonly ciphertext: Buffer
}

/** The master keys of a process. AES-256-GCM throughout; invariants K1 and K3, ADR 56. */
export interface Keyring {
  /** The id of the key that encrypts. */
  readonly current: string
  /** The id of a second master key that only decrypts, during a change of master keys. */
  readonly previous: string | undefined
  seal(owner: Owner, value: Buffer): Sealed
  /** Rejects with 503 `secret_unreadable` when the master key is missing, or the row was changed or moved. */
  open(owner: Owner, sealed: Sealed): Buffer
  /** Wraps the data key under the current master key, without decrypting the value. Errors as `open`. */
  rewrap(owner: Owner, wrapped: Wrapped): Wrapped
}

interface MasterKey {
  readonly id: string
  readonly wrapping: Buffer
}

const derived = (master: Buffer, purpose: string, bytes: number): Buffer =>
  Buffer.from(hkdfSync('sha256', master, '', `ao/secrets/${purpose}/v1`, bytes))

// The id is derived from the key but reveals nothing about it, so nobody has to name keys.
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
/** The keyring without a master key: every call throws. */
export const noKeyring: Keyring = { current: '', previous: undefined, seal: locked, open: locked, rewrap: locked }

// The authenticated data is rebuilt from the row and never stored. So ciphertext that was copied to another row cannot be decrypted.
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

// A secret's name has no slash. So a sealed text can never be opened as a secret, nor a secret as a sealed text.
const ownerOf = (tenantId: string, name: string): Owner => ({ tenantId, name: `sealed/${name}`, version: 1 })

function inOne({ masterKey, wrappedKey, ciphertext }: Sealed): string {
  return [masterKey, wrappedKey.toString('base64url'), ciphertext.toString('base64url')].join('.')
}
function partsOf(sealed: string): Sealed {
  const [masterKey = '', wrappedKey = '', ciphertext = ''] = sealed.split('.')
  const bytes = (text: string): Buffer => Buffer.from(text, 'base64url')
  return { masterKey, wrappedKey: bytes(wrappedKey), ciphertext: bytes(ciphertext) }
}

/** Seals texts for other plugins. The result is the master key's id, the wrapped data key and the ciphertext, joined by dots. */
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

/** Wraps a sealed text's data key under the current master key. Errors as `Keyring.rewrap`. */
export function resealed(keyring: Keyring, tenantId: string, name: string, sealed: string): string {
  const parts = partsOf(sealed)
  return inOne({ ...parts, ...keyring.rewrap(ownerOf(tenantId, name), parts) })
}
