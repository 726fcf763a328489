import { definePlugin } from '#kernel'
import { InternalGuard } from '#contracts/auth'
import { Signers } from '#contracts/signing'
import { acceptLinks } from '#kit'
import { createInternalGuard, linkAdmission } from './guard.ts'

export default definePlugin({
  name: 'internal-guard',
  requires: { signers: Signers },
  provides: { guard: InternalGuard },
  async setup({ deps, listeners, routes }) {
    const signer = deps.signers.get('chat-gateway')
    if (!signer && listeners.includes('internal')) {
      throw new Error(
        'the internal listener is on (INTERNAL_PORT) but nothing can verify its requests; set CHAT_GATEWAY_SIGNING_KEY_CURRENT',
      )
    }
    if (signer && listeners.includes('internal'))
      routes('internal', async (app) => acceptLinks(app, linkAdmission(signer)))
    return { guard: createInternalGuard(signer) }
  },
})
