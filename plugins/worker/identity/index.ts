import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { clientIdPattern } from '#contracts/ids'
import { ModelEgress } from '#contracts/model'
import { workerVariables } from '#contracts/wire/worker'
import { createModelConnections } from '#kit/models'
import { blankInEnvironment, createIdentity, createModelEgress, WorkerIdentity } from './identity.ts'

/**
 * The worker's identity, and its way to model servers: through the runner, with the present token. It is a plugin of its own because model providers
 * need it, and the worker depends on what is built on them.
 */
export default definePlugin({
  name: 'worker-identity',
  config: Settings({
    runnerUrl: Type.String({
      pattern: '^https?://[^\\s]+$',
      expects: 'an http or https URL',
      description: 'The runner, as this worker reaches it.',
    }),
    token: Type.String({
      pattern: '^[\\x21-\\x7e]+$',
      expects: 'a token without spaces',
      description: 'The token that the runner gave this worker.',
    }),
    sessionId: Type.String({
      pattern: clientIdPattern,
      expects: 'a session id: 1 to 128 letters, digits, _ and -',
      description: 'The session whose runs this worker executes.',
    }),
  }),
  provides: { identity: WorkerIdentity, egress: ModelEgress },
  async setup(ctx) {
    if (!(await blankInEnvironment(workerVariables.token)))
      ctx.log.debug('other processes of this user may read the token')
    const identity = createIdentity(ctx.config)
    const connections = createModelConnections()
    ctx.onStop(connections.close)
    return { identity, egress: createModelEgress(identity, connections.fetch) }
  },
})
