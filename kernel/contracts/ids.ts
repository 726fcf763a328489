import { hash, randomUUID } from 'node:crypto'

/** Ids that a client may choose (runs, sessions): 1-128 letters, digits, underscore, hyphen. Specification 2.5. */
export const clientIdPattern = '^[A-Za-z0-9_-]{1,128}$'
const clientId = new RegExp(clientIdPattern)
export const isClientId = (id: string): boolean => clientId.test(id)

/** The key of a tenant's thing in a process-wide map. It contains the tenant, because other tenants may use the same id. */
export const tenantKey = (tenantId: string, id: string): string => `${tenantId}\n${id}`

const alphabet = '0123456789abcdefghjkmnpqrstvwxyz'

/** A new id such as `prun_01m2…`: 9 characters of time, so that fresh rows are neighbours in an index, and 96 random bits. */
export function newId(prefix: string): string {
  let time = Date.now()
  let head = ''
  for (let i = 0; i < 9; i++) {
    head = alphabet[time % 32]! + head
    time = Math.floor(time / 32)
  }
  // Node draws UUIDs from a pool of random bytes. Without dashes and version bits a UUID is 24 random hex digits.
  const uuid = randomUUID()
  return `${prefix}_${head}${uuid.slice(0, 8)}${uuid.slice(9, 13)}${uuid.slice(24)}`
}

/** True for text that `newId` could have made. Other text needs no look-up. */
export const isId = (prefix: string, text: string): boolean =>
  text.startsWith(`${prefix}_`) && /^[0-9a-z]{33}$/.test(text.slice(prefix.length + 1))

/** The first 8 hex characters of SHA-256 of the runner's base URL. Any conductor can route a session by it. Specification 2.5. */
export const runnerHash = (baseUrl: string): string => hash('sha256', baseUrl).slice(0, 8)

/** `sess-<runnerHash>-<8hex>`. */
export const newSessionId = (runner: string): string => `sess-${runner}-${randomUUID().slice(0, 8)}`

/** The runner hash inside a session id. Undefined when the id has another form. */
export const hashOfSession = (sessionId: string): string | undefined =>
  /^sess-([0-9a-f]{8})-[0-9a-f]{8}$/.exec(sessionId)?.[1]
