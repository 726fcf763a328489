import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, Settings } from '#kernel'
import { Tokens } from '#contracts/auth'
import { createTokens } from './tokens.ts'

/** Mints tokens and hashes them: for a conductor, which issues and checks keys, and for a gateway, which checks those of published agents. */
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
  provides: { tokens: Tokens },
  setup: async ({ config }) => ({ tokens: createTokens(config.env, config.pepper) }),
})
