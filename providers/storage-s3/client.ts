import { createHash } from 'node:crypto'
import { addAbortSignal, type Readable } from 'node:stream'
import { AwsV4Signer } from 'aws4fetch'
import { Agent, type Dispatcher } from 'undici'
import { maxKeyBytes, mostObjectsAtOnce, objectErrors } from '#contracts/object-store'
import { readBody } from '#kit'
import { guardedLookup, outboundUrl, permittedAddresses, systemResolve } from '#kit/outbound'

export interface S3Settings {
  readonly endpoint: string
  readonly region: string
  readonly bucket: string
  readonly accessKeyId: string
  readonly secretAccessKey: string
  readonly sessionToken?: string | undefined
  /** Milliseconds for each of: connecting, the headers of an answer, and the next part of its body. */
  readonly timeoutMs: number
  /** `network` by default: addresses of the operator's own servers, also over plain http. */
  readonly reach?: 'public' | 'network'
}

interface S3Request {
  readonly method: 'GET' | 'HEAD' | 'PUT' | 'DELETE'
  /** The key in the bucket; '' for the bucket itself. */
  readonly key: string
  readonly query?: Readonly<Record<string, string>>
  readonly headers?: Readonly<Record<string, string>>
  /** The SHA-256 of the body is signed, so the server refuses bytes that were changed on the way. */
  readonly body?: { readonly stream: () => Readable; readonly bytes: number; readonly sha256: string }
  /** Further statuses that count as answers, in addition to those below 300. */
  readonly expected?: readonly number[]
  readonly signal?: AbortSignal
}

const emptySha256 = createHash('sha256').digest('hex')
/** How often a request is retried when the server is busy or the connection broke. */
const mostRetries = 2
const passing = new Set([500, 502, 503, 504])
/** Bytes in a millisecond: 64 kB in a second. A server that takes an upload more slowly would keep it waiting on the disk that all tenants share. */
const slowestPace = 64
const longestTimer = 2 ** 31 - 1

/** The encoding of keys and queries that AWS signs: everything but the unreserved characters of RFC 3986. */
const encoded = (text: string): string =>
  encodeURIComponent(text).replaceAll(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`)

/** Signed requests to one bucket, addressed by path. Connects only to allowed addresses. */
export class S3Client {
  readonly #settings: S3Settings
  readonly #base: string
  readonly #agent: Agent

  constructor(settings: S3Settings) {
    const { endpoint, bucket, timeoutMs, reach = 'network' } = settings
    const permits = permittedAddresses[reach]
    const url = outboundUrl(endpoint, { permits, schemes: reach === 'public' ? ['https'] : ['http', 'https'] })
    if (typeof url === 'string') throw new Error(`the endpoint of the S3 storage cannot be used: ${url}`)
    this.#settings = settings
    this.#base = `${url.origin}${url.pathname.replace(/\/+$/, '')}/${encoded(bucket)}`
    this.#agent = new Agent({
      connect: { lookup: guardedLookup(systemResolve, permits), timeout: timeoutMs },
      headersTimeout: timeoutMs,
      bodyTimeout: timeoutMs,
      connections: 64,
      // No pipelining: a broken connection may lose a request that follows another one, and a write is not sent twice.
      pipelining: 1,
    })
  }

  /** Resolves to the answer, whose body the caller must read or dump. Rejects with `objectErrors`. */
  async send(request: S3Request): Promise<Dispatcher.ResponseData> {
    const { headers = {}, method } = request
    // Send a conditional write once: a condition that held for the first attempt no longer holds for the second.
    const once = method === 'PUT' && (headers['if-match'] ?? headers['if-none-match']) !== undefined
    // A read of an object goes on for as long as its reader wants. Everything else has an end, whatever the server does, which may be a tenant's.
    const signal = request.signal ?? (method === 'GET' ? undefined : this.deadline(request.body?.bytes))
    for (let left = once ? 0 : mostRetries; ; left--) {
      const answer = await this.#once({ ...request, ...(signal ? { signal } : {}) }).catch((cause: unknown) => {
        if (left === 0) throw objectErrors.storageUnavailable({ cause })
        return undefined
      })
      if (!answer) continue
      const { statusCode, body } = answer
      if (statusCode < 300 || request.expected?.includes(statusCode)) return answer
      const text = await someText(body, this.#settings.timeoutMs)
      if (left === 0 || !passing.has(statusCode)) throw refusal(statusCode, text)
    }
  }

  async #once({ method, key, query = {}, headers = {}, body, signal }: S3Request): Promise<Dispatcher.ResponseData> {
    const { accessKeyId, secretAccessKey, sessionToken, region } = this.#settings
    const path = key === '' ? '' : `/${key.split('/').map(encoded).join('/')}`
    const search = Object.entries(query).map(([name, value]) => `${encoded(name)}=${encoded(value)}`)
    const signer = new AwsV4Signer({
      method,
      url: `${this.#base}${path}${search.length > 0 ? `?${search.join('&')}` : ''}`,
      headers: { ...headers, 'x-amz-content-sha256': body?.sha256 ?? emptySha256 },
      accessKeyId,
      secretAccessKey,
      ...(sessionToken ? { sessionToken } : {}),
      service: 's3',
      region,
    })
    const signed = await signer.sign()
    return this.#agent.request({
      origin: signed.url.origin,
      path: `${signed.url.pathname}${signed.url.search}`,
      method,
      headers: { ...Object.fromEntries(signed.headers), ...(body ? { 'content-length': String(body.bytes) } : {}) },
      ...(body ? { body: body.stream() } : {}),
      ...(signal ? { signal } : {}),
    })
  }

  /** Ends a request and its answer: connecting, the beginning of the answer and all of its body have a timeout each, and what is sent a slowest pace. */
  deadline(sentBytes = 0): AbortSignal {
    const ms = 3 * this.#settings.timeoutMs + Math.ceil(sentBytes / slowestPace)
    return AbortSignal.timeout(Math.min(ms, longestTimer))
  }

  close(): Promise<void> {
    return this.#agent.destroy()
  }
  /** Closes the client after its running requests. */
  retire(): Promise<void> {
    return this.#agent.close()
  }
}

const mostErrorBytes = 16 * 1024
async function someText(body: Readable, withinMs: number): Promise<string> {
  let text = ''
  try {
    for await (const chunk of addAbortSignal(AbortSignal.timeout(withinMs), body))
      if ((text += String(chunk)).length > mostErrorBytes) break
  } catch {
    // The part that was read is enough to recognize the error.
  }
  return text
}

const key = 'the key that requests are signed with: access key, secret or session token is wrong, or has expired'
const access = 'its key at the bucket: it has to list it, and to read, write and delete objects in it'
const wrong = {
  credentials: `The S3 server refuses ${key}.`,
  access: `The S3 server does not let ${access}.`,
  either: `The S3 server refuses ${key}; or it does not let ${access}.`,
  bucket: 'The S3 server has no bucket of this name.',
  region: 'The bucket is in another region than the one that requests are signed for.',
  clock: 'The clocks of this machine and of the S3 server differ too much for a valid signature.',
} as const

/** S3 error codes that mean wrong settings, and the statuses of answers without a code, such as those to HEAD. */
const misconfigured: Readonly<Record<string, string>> = {
  InvalidAccessKeyId: wrong.credentials,
  SignatureDoesNotMatch: wrong.credentials,
  InvalidToken: wrong.credentials,
  ExpiredToken: wrong.credentials,
  TokenRefreshRequired: wrong.credentials,
  401: wrong.credentials,
  AccessDenied: wrong.access,
  AllAccessDisabled: wrong.access,
  AccountProblem: wrong.access,
  403: wrong.either,
  NoSuchBucket: wrong.bucket,
  PermanentRedirect: wrong.region,
  AuthorizationHeaderMalformed: wrong.region,
  IllegalLocationConstraintException: wrong.region,
  301: wrong.region,
  RequestTimeTooSkewed: wrong.clock,
}

/** Translates an error of an S3 server for callers. The server's own text goes to the log as the cause. */
function refusal(status: number, text: string): Error {
  const code = /<Code>([\w.]{1,64})<\/Code>/.exec(text)?.[1] ?? ''
  const cause = new Error(`the S3 server answered ${status} ${code}`)
  if (status === 412 || status === 409) return objectErrors.preconditionFailed({ cause })
  if (status === 507 || /quota|insufficientstorage|storagefull/i.test(code)) return objectErrors.storageFull({ cause })
  const why = Object.hasOwn(misconfigured, code) ? code : String(status)
  return Object.hasOwn(misconfigured, why)
    ? objectErrors.storageMisconfigured({ cause, message: misconfigured[why]! })
    : objectErrors.storageUnavailable({ cause })
}

/** The largest list: a thousand keys of a kilobyte, each byte of which takes three, with their properties. */
const mostListBytes = 8 * 1024 * 1024
async function wholeText(body: AsyncIterable<Uint8Array>): Promise<string> {
  const bytes = await readBody(body, mostListBytes)
  if (!bytes) throw new Error(`a list of more than ${mostListBytes} bytes`)
  return bytes.toString()
}

/** Reads a server's answer to ListObjectsV2. The server may belong to a tenant, and may answer anything. */
export async function listIn(body: AsyncIterable<Uint8Array>): Promise<Listed> {
  try {
    return readList(await wholeText(body))
  } catch (cause) {
    throw objectErrors.storageUnavailable({
      message: 'The S3 server answers a list request with something that is not a list.',
      cause,
    })
  }
}

/** A page of ListObjectsV2. */
export interface Listed {
  readonly objects: readonly { readonly key: string; readonly bytes: number }[]
  readonly prefixes: readonly string[]
  readonly truncated: boolean
}

const entities: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" }

const unescaped = (text: string): string =>
  text.replaceAll(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (all, hex?: string, decimal?: string, name?: string) => {
    if (hex !== undefined) return String.fromCodePoint(parseInt(hex, 16))
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal))
    return entities[name!] ?? all
  })

const patterns = {
  Key: /<Key>([^<]*)<\/Key>/,
  Size: /<Size>([^<]*)<\/Size>/,
  Prefix: /<Prefix>([^<]*)<\/Prefix>/,
  IsTruncated: /<IsTruncated>([^<]*)<\/IsTruncated>/,
}
/** The longest text of an element: the largest key, each byte of which takes six characters, for example `&quot;`. */
const mostText = 6 * maxKeyBytes

function textOf(within: string, name: keyof typeof patterns): string {
  const text = patterns[name].exec(within)?.[1] ?? ''
  if (text.length > mostText) throw new Error(`a ${name} of ${text.length} characters`)
  return unescaped(text)
}
/** The contents of all elements with this name. The split has a limit, because a server may write a tag a million times. */
function all(xml: string, name: string): string[] {
  const parts = xml.split(`<${name}>`, mostObjectsAtOnce + 2).slice(1)
  if (parts.length > mostObjectsAtOnce) throw new Error(`a list with more than ${mostObjectsAtOnce} ${name}`)
  return parts.map((one) => one.split(`</${name}>`, 1)[0]!)
}

/** A number of bytes that a server has said. Undefined when it is none with which one can calculate. */
export function bytesIn(text: unknown): number | undefined {
  const bytes = Number(text)
  return Number.isSafeInteger(bytes) && bytes >= 0 ? bytes : undefined
}
function sizeOf(object: string): number {
  const bytes = bytesIn(textOf(object, 'Size'))
  if (bytes === undefined) throw new Error('a Size that is no number of bytes')
  return bytes
}

/**
 * Reads a list in the XML of S3. The XML is flat and generated, and the parts that are read have no comments, attributes or CDATA, so no XML parser
 * is needed. Keys are URL-encoded if the server does as requested. Throws on more than was asked for: it is read in one step, which others wait for.
 */
export function readList(xml: string): Listed {
  const coded = /<EncodingType>\s*url\s*<\/EncodingType>/.test(xml)
  const keyOf = (text: string): string => (coded ? decodeURIComponent(text.replaceAll('+', ' ')) : text)
  return {
    objects: all(xml, 'Contents').map((one) => ({ key: keyOf(textOf(one, 'Key')), bytes: sizeOf(one) })),
    prefixes: all(xml, 'CommonPrefixes').map((one) => keyOf(textOf(one, 'Prefix'))),
    truncated: textOf(xml, 'IsTruncated') === 'true',
  }
}
