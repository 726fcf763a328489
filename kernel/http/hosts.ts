import fp from 'fastify-plugin'
import { appError } from '../errors.ts'

const unknownHost = appError(
  'unknown_host',
  421,
  'This server is not asked under this host name; whoever runs it can add the name to `hosts` of its listener.',
)

/**
 * Refuses requests that ask for another host than these. A page that has its own name lead to this machine may have its
 * visitor's browser send requests here, and read the answers: but the browser names the page's host in them. Requests over a
 * link of peers are not looked at, because no browser can open one.
 */
export const allowedHosts = fp(
  async (app, { hosts }: { hosts: readonly string[] | undefined }) => {
    if (!hosts) return
    const allowed = new Set(hosts.map((host) => host.toLowerCase()))
    app.addHook('onRequest', ({ hostname }, _reply, done) => {
      done(allowed.has(hostname.toLowerCase()) ? undefined : unknownHost())
    })
  },
  { name: 'agent-orc-hosts', dependencies: ['agent-orc-errors'] },
)
