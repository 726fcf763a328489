import { createHash, randomBytes, randomFillSync } from 'node:crypto'

/** Ids that a client may choose (runs, sessions): 1-128 letters, digits, underscore, hyphen. Specification 2.5. */
export const clientIdPattern = '^[A-Za-z0-9_-]{1,128}$'
const clientId = new RegExp(clientIdPattern)
export const isClientId = (id: string): boolean => clientId.test(id)

export type IdPrefix = 'pub' | 'key' | 'conv' | 'prun' | 'run' | 'tak' | 'prof' | 'pool' | 'inst'

const alphabet = '0123456789abcdefghjkmnpqrstvwxyz'

/** `prun_01m2…`: 9 characters of time, so that fresh rows are neighbours in an index, and 80 random bits. */
export function newId(prefix: IdPrefix): string {
  let time = Date.now()
  let head = ''
  for (let i = 0; i < 9; i++) {
    head = alphabet[time % 32]! + head
    time = Math.floor(time / 32)
  }
  let tail = ''
  for (const byte of randomFillSync(new Uint8Array(16))) tail += alphabet[byte & 31]!
  return `${prefix}_${head}${tail}`
}

/** First 8 hex characters of SHA-256 of the runner's base URL: how any conductor routes a session. Specification 2.5. */
export const runnerHash = (baseUrl: string): string => createHash('sha256').update(baseUrl).digest('hex').slice(0, 8)

/** `sess-<runnerHash>-<8hex>`. */
export const newSessionId = (hash: string): string => `sess-${hash}-${randomBytes(4).toString('hex')}`

/** The runner hash inside a session id, or undefined when the id has another form. */
export const hashOfSession = (sessionId: string): string | undefined =>
  /^sess-([0-9a-f]{8})-[0-9a-f]{8}$/.exec(sessionId)?.[1]
