import fp from 'fastify-plugin'
import { parseJson } from '../../http/requests.ts'
import { streamsOf } from '../../http/streams.ts'
import { proofsOf } from '../proof.ts'
import { createLinkHost, linkHostKey } from './host.ts'

interface LinkOptions {
  readonly leaving: AbortSignal
  readonly logRequests: boolean
}

/**
 * Links of peers, whose requests are checked and bounded as those over HTTP are. Who opens one shows what the listener demands;
 * its requests need not show it again.
 */
export const peerLinks = fp(
  async (app, { leaving, logRequests }: LinkOptions) => {
    const links = createLinkHost({
      log: app.log,
      streams: streamsOf(app),
      compile: app.validatorCompiler!,
      parse: parseJson,
      logRequests,
      bodyLimit: app.initialConfig.bodyLimit!,
      prove: (request) => proofsOf(app).check(request),
    })
    app.decorate(linkHostKey, links)
    // A request for any other protocol is answered as plain HTTP.
    Object.assign(app.server, { shouldUpgradeCallback: links.wants })
    app.server.on('upgrade', links.upgrade)
    leaving.addEventListener('abort', links.leave)
    app.addHook('preClose', () => links.end())
  },
  { name: 'agent-orc-links', dependencies: ['agent-orc-bodies', 'agent-orc-proofs', 'agent-orc-streams'] },
)
