import { createHmac, createSecretKey, hash, type KeyObject, randomBytes, timingSafeEqual } from 'node:crypto'
import { isAppError, unauthorized, unavailable } from '#kernel'
import type { Kv } from '#contracts/kv'
import { runnerHeaders, signedHeaders, type SignedParts, type Signer, type SigningFamily } from '#contracts/signing'

/** Seconds by which a sender's clock may differ. */
const maxSkewSeconds = 60
/** Milliseconds after its timestamp for which a nonce is remembered. A request is valid for less than 61 s after its timestamp. */
const nonceMs = 65_000
/**
 * The same after its arrival, where processes share the nonces: their clocks differ as well, so a request that is 60 s old by one of them may be valid
 * for 120 s by another. In the memory of one process there is one clock, and half of the nonces to remember.
 */
const sharedNonceMs = 125_000
const maxBodyBytes = 1024 * 1024
const minKeyBytes = 32

// Each header must have exactly one well-formed value. Node joins repeated headers with a comma, which no form allows.
const forms = {
  signature: /^v1,[A-Za-z0-9+/]{43}=$/,
  timestamp: /^[1-9][0-9]{0,11}$/,
  nonce: /^[A-Za-z0-9_-]{22}$/,
  keyId: /^[A-Za-z0-9_-]{1,64}$/,
  tenant: /^[A-Za-z0-9_.-]{1,128}$/,
  digest: /^[0-9a-f]{64}$/,
} as const
type Field = keyof typeof forms
type Fields = Record<Field, string>

export interface SignerOptions {
  readonly family: SigningFamily
  readonly current: Buffer
  readonly previous?: Buffer
  readonly kv: Kv
  /** Called with the reason of a refusal, for the log. The caller only ever learns `unauthorized`. */
  readonly onRefused: (reason: string, keyId: string | undefined) => void
  /** Returns milliseconds since the epoch. Tests replace it. */
  readonly now?: () => number
}

interface HeadSigner extends Signer {
  /**
   * Like `verify`, but before the body has arrived; for the family `runner`. Resolves to the signed SHA-256 in hex, which the reader of the body
   * must check.
   */
  verifyHead(headers: Parameters<Signer['verify']>[0], parts: Head): Promise<string>
}
type Head = Pick<SignedParts, 'method' | 'target'>

/** The signing scheme AO-HMAC-SHA256-V1. Specification 5.3. */
export function createSigner(options: SignerOptions): HeadSigner {
  const { family, kv, onRefused, now = Date.now } = options
  const seconds = (): number => Math.floor(now() / 1000)
  const current = keyOf(options.current)
  const previous = options.previous && keyOf(options.previous)
  const keys = previous ? [current, previous] : [current]

  /** Verifies a signature. `digest`: the digest of the body, if the body has already arrived. */
  const check = async (headers: Parameters<Signer['verify']>[0], head: Head, digest?: string): Promise<Fields> => {
    const fields = parse(family, headers, digest)
    const refuse = (reason: string): Error => {
      onRefused(reason, fields?.keyId)
      return unauthorized()
    }
    if (!fields) throw refuse('a signed header is missing, repeated or malformed')
    const at = Number(fields.timestamp)
    if (Math.abs(seconds() - at) > maxSkewSeconds) throw refuse('the timestamp is more than 60 s off')
    // Both keys are tried, because the key id is only a hint. During a rotation, a sender that was not yet restarted still calls the old key
    // CURRENT.
    const text = signedText(family, fields, head)
    if (!keys.some((key) => equal(fields.signature, signature(key, text)))) {
      throw refuse('the signature matches no key of this family')
    }
    const nonce = `ao:nonce:${family}:${fields.nonce}`
    const ttlMs = kv.backend === 'memory' ? at * 1_000 + nonceMs - now() : sharedNonceMs
    const fresh = await kv.claim(nonce, ttlMs, at * 1_000).catch((cause: unknown) => {
      throw isAppError(cause) ? cause : unavailable({ cause, retryable: true })
    })
    if (!fresh) throw refuse('the nonce was used before')
    return fields
  }

  return {
    hasPreviousKey: previous !== undefined,
    sign(parts, keyId = 'CURRENT') {
      const key = keyId === 'CURRENT' ? current : previous
      if (!key) throw new Error('there is no previous key to sign with')
      const fields = {
        timestamp: String(seconds()),
        nonce: randomBytes(16).toString('base64url'),
        keyId,
        tenant: parts.tenant,
        digest: digestOf(parts.body),
      }
      return named(family, { ...fields, signature: signature(key, signedText(family, fields, parts)) })
    },
    async verify(headers, { body, ...head }) {
      if (body.byteLength <= maxBodyBytes) return { tenant: (await check(headers, head, digestOf(body))).tenant }
      onRefused('the body is larger than 1 MiB', undefined)
      throw unauthorized()
    },
    verifyHead: async (headers, head) => (await check(headers, head)).digest,
  }
}

function keyOf(bytes: Buffer): KeyObject {
  if (bytes.length < minKeyBytes)
    throw new Error(`a signing key needs at least ${minKeyBytes} bytes, got ${bytes.length}`)
  return createSecretKey(bytes)
}

const digestOf = (body: Uint8Array): string => hash('sha256', body, 'hex')

const headersOf = (family: SigningFamily): Partial<Record<Field, string>> =>
  family === 'runner' ? runnerHeaders : signedHeaders

/** Parses the signed headers. Undefined if a header is missing or malformed, or if it names another digest than the body has. */
function parse(
  family: SigningFamily,
  headers: Parameters<Signer['verify']>[0],
  digest: string | undefined,
): Fields | undefined {
  const fields: Partial<Fields> = digest === undefined ? {} : { digest }
  for (const [field, name] of Object.entries(headersOf(family)) as [Field, string][]) {
    const mayLack = field === 'tenant' && family === 'runner'
    const value = headers[name] ?? (mayLack ? '' : undefined)
    if (typeof value !== 'string' || !(forms[field].test(value) || (mayLack && value === ''))) return undefined
    if (field === 'digest' && digest !== undefined && value !== digest) return undefined
    fields[field] = value
  }
  return fields.digest === undefined ? undefined : (fields as Fields)
}

const named = (family: SigningFamily, fields: Fields): Record<string, string> =>
  Object.fromEntries(
    (Object.entries(headersOf(family)) as [Field, string][])
      // A proxy may drop a header without a value, which would break the signature.
      .filter(([field]) => fields[field] !== '')
      .map(([field, name]) => [name, fields[field]]),
  )

function signedText(
  family: SigningFamily,
  { keyId, timestamp, nonce, tenant, digest }: Omit<Fields, 'signature'>,
  { method, target }: Head,
): string {
  return ['AO-HMAC-SHA256-V1', family, keyId, timestamp, nonce, tenant, method.toUpperCase(), target, digest].join('\n')
}

const signature = (key: KeyObject, text: string): string =>
  `v1,${createHmac('sha256', key).update(text).digest('base64')}`

/** Compares the base64 texts in constant time, not the decoded bytes. Several texts decode to the same bytes, and only one of them was signed. */
const equal = (a: string, b: string): boolean =>
  a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b))
