import { createHmac, createSecretKey, randomBytes } from 'node:crypto'
import { crc32 } from 'node:zlib'
import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, errorTable, Settings } from '#kernel'
import { Tokens } from '#contracts/auth'

const tokenErrors = errorTable('tokens', {
  keyHashingUnavailable: {
    status: 503,
    message:
      'Keys cannot be issued or checked: set AGENT_API_KEY_PEPPER (base64 of at least 32 random bytes) and restart.',
  },
})

/** Makes and hashes tokens. A conductor issues and checks API keys with it, and a gateway checks the keys of published agents. */
export default definePlugin({
  name: 'tokens',
  config: Settings({
    pepper: Type.Optional(Base64Secret('AGENT_API_KEY_PEPPER: hashes every key; rotating it invalidates all of them.')),
    env: Type.String({
      pattern: '^[A-Za-z0-9_-]{1,32}$',
      default: 'dev',
      description: 'AGENT_ORC_ENV: the second part of a token, so that a leaked one says where it belongs.',
    }),
  }),
  errors: tokenErrors,
  provides: { tokens: Tokens },
  setup: async ({ config }) => ({ tokens: createTokens(config.env, config.pepper) }),
})

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
/** 43 base62 characters carry 256 bits: nobody can guess that, so a fast hash is enough. */
const secretLength = 43
const checksumLength = 6
/** The largest multiple of 62 that fits into a byte. Larger bytes are discarded, because they would favour the first characters. */
const unbiased = 248
const form = /^ao_([A-Za-z0-9_-]{1,32})_([0-9A-Za-z]{49})$/

export function createTokens(env: string, pepper: Buffer | undefined): Tokens {
  // A KeyObject is made once: handing HMAC the raw bytes costs seven times as much per call.
  const key = pepper && createSecretKey(pepper)
  return {
    mint() {
      const body = `ao_${env}_${randomBase62(secretLength)}`
      return body + checksum(body)
    },
    wellFormed: (token) =>
      form.test(token) && checksum(token.slice(0, -checksumLength)) === token.slice(-checksumLength),
    hash(domain, token) {
      if (!key) throw tokenErrors.keyHashingUnavailable()
      return createHmac('sha256', key).update(`${domain}\0${token}`).digest()
    },
  }
}

function randomBase62(length: number): string {
  let text = ''
  while (text.length < length) {
    for (const byte of randomBytes(length)) {
      if (byte < unbiased && text.length < length) text += alphabet[byte % 62]!
    }
  }
  return text
}

/** CRC-32 of everything before it. It tells a mistyped or cut token from a real one without a look-up. */
function checksum(body: string): string {
  let rest = crc32(body)
  let text = ''
  for (let i = 0; i < checksumLength; i++) {
    text = alphabet[rest % 62]! + text
    rest = Math.floor(rest / 62)
  }
  return text
}
