import fp from 'fastify-plugin'
import { createLinkHost, linkHostKey } from '../kit/link/host.ts'
import { parseJson } from './bodies.ts'
import { streamsOf } from './streams.ts'

interface LinkOptions {
  readonly leaving: AbortSignal
  readonly logRequests: boolean
}

/** Links of peers (see kernel/kit/link), whose requests are checked and bounded as those over HTTP are. */
export const peerLinks = fp(
  async (app, { leaving, logRequests }: LinkOptions) => {
    const links = createLinkHost({
      log: app.log,
      streams: streamsOf(app),
      compile: app.validatorCompiler!,
      parse: parseJson,
      logRequests,
      bodyLimit: app.initialConfig.bodyLimit!,
    })
    app.decorate(linkHostKey, links)
    // Whatever else asks for another protocol is answered as if it had not.
    Object.assign(app.server, { shouldUpgradeCallback: links.wants })
    app.server.on('upgrade', links.upgrade)
    leaving.addEventListener('abort', links.leave)
    app.addHook('preClose', () => links.end())
  },
  { name: 'agent-orc-links', dependencies: ['agent-orc-bodies', 'agent-orc-streams'] },
)
