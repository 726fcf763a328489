import ipaddr from 'ipaddr.js'
import { AppError, type AppErrorOptions, errorTable } from '#kernel'
import { limitErrors } from '#contracts/limits'
import { signedHeaders, type Signer } from '#contracts/signing'
import { createPeers, type Peers, type PeersOptions, signedBy } from '#kit'

const connectMs = 2_000
/** A conductor creates or hydrates the session before it sends the response head of a new run. */
const headMs = 30_000
/** A silent stream over HTTP is opened anew after this: its peer may have vanished without closing it. */
const silentMs = 60_000

/** Connections to a conductor's signed internal listener. Every request is signed by itself, so a repeated one has a fresh nonce. */
export const conductorPeers = (signer: Signer, options: Pick<PeersOptions, 'links' | 'tls'> = {}): Peers =>
  createPeers({
    ...options,
    connectMs,
    silentMs,
    timeoutMs: headMs,
    identity: signedBy(withTenant(signer), signedHeaders.tenant),
    faults: { lost: (how) => new ConductorLost(how), failed: unexpected },
  })

/** Every signature of this plane names a tenant, also of what is about none, such as the opening of a link. */
const withTenant = (signer: Signer): Signer => ({
  hasPreviousKey: signer.hasPreviousKey ?? false,
  sign: (parts, key) => signer.sign({ ...parts, tenant: parts.tenant || 'default' }, key),
  verify: (headers, parts) => signer.verify(headers, parts),
})

export const conductorErrors = errorTable('conductor-client', {
  upstream: {
    status: 502,
    retry: 'as-said',
    message: 'The conductor cannot be reached.',
    about: 'The conductor cannot be reached, or failed; the sentence says which.',
  },
})
const keysMismatched =
  'The conductor refuses our signature: CHAT_GATEWAY_SIGNING_KEY_CURRENT must be the same on both services, and their clocks within a minute.'

/** The connection ended before its answer did, or there was none: the same question may be put again. */
export class ConductorLost extends AppError {
  /** The stream was only silent for long. */
  readonly silent: boolean
  constructor({ asked, cause }: { readonly asked: boolean; readonly cause: Error }) {
    const { code, status, message = code } = conductorErrors.upstream.row
    super(code, status, { message, retryable: !asked, cause })
    this.silent = (cause as { code?: unknown }).code === 'UND_ERR_BODY_TIMEOUT'
  }
}

/** The error for an answer that the wire does not allow. */
export const unexpected = ({ message, detail }: AppErrorOptions): AppError =>
  conductorErrors.upstream({ message: message ?? `The conductor answered ${String(detail?.['status'])}.` })

/** Maps an error of the conductor for callers that dispatch runs. Its own failures and ours are all `upstream`. */
export function meaningOf(error: AppError): AppError {
  const { code, status, retryable } = error
  if (code === 'upstream') return error
  if (status === 401) return conductorErrors.upstream({ message: keysMismatched })
  // A limit of the tenant is its own affair; any other is between the two services.
  if (code === limitErrors.limitReached.row.code) return error
  if (status !== 429 && status < 500) return error
  return conductorErrors.upstream({ message: `The conductor answered ${status}.`, retryable, cause: error })
}

// Hosts on which hosting platforms publish a service to the internet. The signed plane must stay on their private network.
const publicDomains = [
  'up.railway.app',
  'fly.dev',
  'onrender.com',
  'herokuapp.com',
  'ondigitalocean.app',
  'koyeb.app',
  'run.app',
  'azurecontainerapps.io',
  'azurewebsites.net',
  'amazonaws.com',
  'awsapprunner.com',
  'vercel.app',
]

/** Endings that name nothing on the internet. */
const internalDomains = ['internal', 'local', 'localhost', 'svc', 'lan', 'intranet', 'private', 'corp', 'home.arpa']

/** Kinds of addresses that are not routed on the internet, as ipaddr.js calls them. */
const privateRanges = ['loopback', 'private', 'carrierGradeNat', 'linkLocal', 'uniqueLocal']

interface AddressRules {
  /** More public domains of the hosting platform. */
  readonly forbidden?: readonly string[]
  /** Domains of a private network whose names look like public ones. */
  readonly internal?: readonly string[]
  /** Where callers reach this gateway. */
  readonly publicHost?: string | undefined
}

/**
 * The conductor's private address, or a sentence why it is refused. Specification 1.1: URLs on the hosting platform's public
 * domain are rejected at boot. No list knows all platforms, so a name that could be one on the internet must be allowed.
 */
export function conductorAddress(url: string, rules: AddressRules = {}): URL {
  const wrong = (why: string): Error => new Error(`CONDUCTOR_INTERNAL_URL ${why}`)
  if (!URL.canParse(url))
    throw wrong('is not a URL; set it to the private address of the conductor, e.g. http://conductor:8081')
  const address = new URL(url)
  if (address.protocol !== 'http:' && address.protocol !== 'https:') throw wrong('must begin with http:// or https://')
  if (address.username !== '' || address.search !== '' || address.hash !== '') {
    throw wrong('must be an origin and at most a path, without user, query or fragment')
  }
  // A trailing dot names the same host.
  const host = address.hostname.replace(/\.$/, '')
  const on = (domain: string): boolean => host === domain || host.endsWith(`.${domain}`)
  const { forbidden = [], internal = [], publicHost } = rules
  const own = publicHost === undefined ? [] : [hostOf(publicHost)]
  const domain = [...publicDomains, ...forbidden.map(hostOf), ...own].find(on)
  if (domain !== undefined) throw wrong(`is on the public domain ${domain}; use the conductor's private address`)
  if (isPrivate(host) || [...internalDomains, ...internal.map(hostOf)].some(on)) return address
  throw wrong(
    `names ${host}, which may be on the internet; use the conductor's private address, or add the domain of your private network to CONDUCTOR_PRIVATE_DOMAINS`,
  )
}

/** An address that is not routed on the internet, or a name without a dot. */
function isPrivate(host: string): boolean {
  const ip = host.replace(/^\[(.*)\]$/, '$1')
  return ipaddr.isValid(ip) ? privateRanges.includes(ipaddr.process(ip).range()) : !host.includes('.')
}

/** `Gateway.example.com:443`, `https://gateway.example.com` or `*.example.com` as the host that URLs carry. */
function hostOf(text: string): string {
  const url = text.includes('://') ? text : `http://${text}`
  return (URL.canParse(url) ? new URL(url).hostname : text.toLowerCase()).replace(/^\*?\./, '').replace(/\.$/, '')
}
