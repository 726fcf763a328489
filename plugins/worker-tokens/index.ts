import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, Settings } from '#kernel'
import { WorkerTokens } from '#contracts/workers'
import { createWorkerTokens } from './tokens.ts'

/** Mints and verifies the tokens of polling workers. Specification 5.4. */
export default definePlugin({
  name: 'worker-tokens',
  config: Settings({
    current: Type.Optional(
      Base64Secret(
        'AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: signs and verifies. Without it no sandbox worker can be started.',
      ),
    ),
    previous: Type.Optional(
      Base64Secret('AGENT_ORC_WORKER_SIGNING_KEY_PREVIOUS: still verifies while keys are being rotated.'),
    ),
  }),
  provides: { tokens: WorkerTokens },
  async setup({ config: { current, previous } }) {
    if (previous && !current) {
      throw new Error(
        'there is a previous signing key for worker tokens but no current one; set AGENT_ORC_WORKER_SIGNING_KEY_CURRENT',
      )
    }
    return { tokens: createWorkerTokens(current, previous) }
  },
})
