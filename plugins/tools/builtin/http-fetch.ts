import { Agent, type Dispatcher, request } from 'undici'
import { isAppError } from '#kernel'
import type { PlatformTool } from '#contracts/tools'
import { Gathered } from '#kit'
import {
  ForbiddenAddressError,
  guardedLookup,
  isPublicAddress,
  outboundUrl,
  type Refusal,
  type Resolve,
  systemResolve,
} from '#kit/outbound'
import { toolErrors } from '../errors.ts'

const maxBytes = 1024 * 1024
const refuse = (message: string): never => {
  throw toolErrors.httpFetch({ message })
}

export interface HttpFetchOptions {
  readonly timeoutMs: number
  /** `example.com`, or `.example.com` with its subdomains. Empty allows any public host. */
  readonly allowHosts: readonly string[]
  readonly resolve?: Resolve
  /** The addresses that may be connected. Only tests allow others than public ones. */
  readonly permits?: (address: string) => boolean
}

/** `http_fetch` reads public text from the web, and nothing else. Invariant N1: addresses in URLs and results of look-ups are both checked. */
export function createHttpFetch(options: HttpFetchOptions): { tool: PlatformTool; close(): Promise<void> } {
  const permits = options.permits ?? isPublicAddress
  const agent = new Agent({
    connect: { lookup: guardedLookup(options.resolve ?? systemResolve, permits), timeout: options.timeoutMs },
    headersTimeout: options.timeoutMs,
    bodyTimeout: options.timeoutMs,
    maxHeaderSize: 16 * 1024,
    // Each call has its own connection, so that no state of one tenant's call reaches another's.
    pipelining: 0,
  })
  const tool: PlatformTool = {
    name: 'http_fetch',
    description:
      'Reads a public http or https URL with GET and returns its text. Redirects are reported, not followed.',
    inputSchema: {
      type: 'object',
      properties: { url: { type: 'string', maxLength: 2_048, description: 'For example https://example.com/page.' } },
      required: ['url'],
      additionalProperties: false,
    },
    async execute(input, { signal }) {
      const url = checked(input['url'] as string, options.allowHosts, permits)
      const within = AbortSignal.any([signal, AbortSignal.timeout(options.timeoutMs)])
      try {
        return { ok: true, content: await read(url, agent, within) }
      } catch (error) {
        if (isAppError(error)) throw error
        return refuse(explain(error, within))
      }
    },
  }
  return { tool, close: () => agent.destroy() }
}

const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'This is not a URL.',
  scheme: 'Only http and https URLs can be read.',
  credentials: 'A URL with credentials is not read.',
  address: 'This address is not public.',
  host: 'This host is not among those that may be read.',
}

function checked(text: string, hosts: readonly string[], permits: (address: string) => boolean): URL {
  const url = outboundUrl(text, { permits, hosts, schemes: ['http', 'https'] })
  return typeof url === 'string' ? refuse(refusals[url]) : url
}

async function read(url: URL, dispatcher: Dispatcher, signal: AbortSignal): Promise<string> {
  const { statusCode, headers, body } = await request(url, {
    dispatcher,
    signal,
    headers: {
      accept: 'text/*, application/json, application/xml;q=0.9',
      'accept-encoding': 'identity',
      'user-agent': 'agent-orc',
    },
  })
  try {
    const location = headers['location']
    if (statusCode >= 300 && statusCode < 400 && typeof location === 'string') {
      return `Status ${statusCode}: the page moved to ${URL.canParse(location, url.href) ? new URL(location, url.href).href : location}`
    }
    const type = String(headers['content-type'] ?? 'text/plain').toLowerCase()
    if (!isText(type)) refuse(`The answer is not text but ${type.split(';')[0]}.`)
    // The request asks for no compression, and unpacking could turn a small answer into a huge one.
    if (headers['content-encoding'] !== undefined && headers['content-encoding'] !== 'identity') {
      refuse('The answer is compressed, although that was not asked for.')
    }
    const { bytes, cut } = await readSome(body)
    const text = decode(bytes, type)
    return `Status ${statusCode}\n\n${text}${cut ? '\n[The answer was cut here: it is longer than 1 MiB.]' : ''}`
  } finally {
    body.on('error', () => {}).destroy()
  }
}

async function readSome(body: AsyncIterable<Buffer>): Promise<{ bytes: Buffer; cut: boolean }> {
  const whole = new Gathered()
  for await (const part of body) {
    whole.add(part)
    if (whole.size > maxBytes) return { bytes: whole.bytes.subarray(0, maxBytes), cut: true }
  }
  return { bytes: whole.bytes, cut: false }
}

const isText = (type: string): boolean =>
  /^(text\/|application\/(json|xml|xhtml\+xml|javascript|x-ndjson|yaml|x-yaml|toml)\b|[a-z]+\/[^;]+\+(json|xml)\b)/.test(
    type,
  )

function decode(bytes: Buffer, type: string): string {
  try {
    return new TextDecoder(/charset="?([\w-]+)/.exec(type)?.[1] ?? 'utf-8').decode(bytes)
  } catch {
    return bytes.toString('utf8')
  }
}

/** A sentence for the model. The text of an unknown error is not used, because it may name internal hosts. */
function explain(error: unknown, signal: AbortSignal): string {
  const { cause } = error as { cause?: unknown }
  if (error instanceof ForbiddenAddressError || cause instanceof ForbiddenAddressError)
    return 'This address is not public.'
  if (signal.aborted) return 'The page took too long.'
  const code = (error as { code?: unknown }).code
  return code === 'ENOTFOUND' ? 'There is no host of that name.' : 'The page could not be read.'
}
