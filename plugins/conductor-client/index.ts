import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { limitErrors } from '#contracts/limits'
import { RunDispatch } from '#contracts/runs'
import { Signers } from '#contracts/signing'
import { followTls, PeerTls } from '#kit'
import { conductorAddress, conductorErrors, conductorPeers } from './peer.ts'
import { createRemoteDispatch } from './dispatch.ts'

/** Submits and follows runs of a conductor in another process, over its signed internal listener. */
export default definePlugin({
  name: 'conductor-client',
  config: Settings({
    url: Type.String({ description: "CONDUCTOR_INTERNAL_URL: the conductor's private address." }),
    forbiddenDomains: CommaList(
      'More public domains of your hosting platform, on which the conductor may not be addressed.',
    ),
    privateDomains: CommaList('Domains of your private network whose names look like public ones.'),
    publicHost: Type.Optional(
      Type.String({ description: 'CHAT_GATEWAY_PUBLIC_HOST: the gateway itself is no private address either.' }),
    ),
    tls: PeerTls,
  }),
  errors: [conductorErrors, limitErrors],
  requires: { signers: Signers },
  provides: { dispatch: RunDispatch, checks: ReadinessChecks },
  async setup({ config, deps, log, onStop }) {
    const address = conductorAddress(config.url, {
      forbidden: config.forbiddenDomains,
      internal: config.privateDomains,
      publicHost: config.publicHost,
    })
    const signer = deps.signers.get('chat-gateway')
    if (!signer) {
      throw new Error(
        'requests to the conductor cannot be signed: set CHAT_GATEWAY_SIGNING_KEY_CURRENT to the same key as on the conductor',
      )
    }
    const peers = conductorPeers(signer, { tls: followTls(config.tls, log) })
    onStop(() => peers.close())
    const dispatch = createRemoteDispatch(peers.at(address.href), {
      conductor_internal_url: address.href,
      previous_signing_key: signer.hasPreviousKey ?? false,
    })
    return { dispatch, checks: { conductor: () => dispatch.ping() } }
  },
})
