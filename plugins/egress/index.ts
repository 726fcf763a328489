import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings, Tenants } from '#kernel'
import { Egress, egressErrors } from '#contracts/egress'
import { secretErrors, Secrets } from '#contracts/secrets'
import { OwnHosts } from '#kit/own-hosts'
import { createEgress } from './egress.ts'

/** Which hosts profiles may let their sandboxes reach through the runner, and what is put into the requests. ADR 59. */
export default definePlugin({
  name: 'egress',
  config: Settings({
    tenants: Tenants('The tenants whose profiles may have `egress`.', ['*']),
    hosts: Type.Array(
      Type.String({
        pattern: '^(\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*(,\\s*\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$',
        expects: 'host names with commas between; .example.com for a domain and all below it',
      }),
      { default: [], description: 'The public hosts that profiles may name; any when empty.' },
    ),
    ownHosts: OwnHosts(
      'Hosts of your own that may be private, for the tenants that they name: `gitea.internal:3000=acme|globex, .corp.example:443=*`. They are asked over TLS, too.',
    ),
  }),
  errors: [egressErrors, secretErrors],
  requires: { secrets: maybe(Secrets) },
  provides: { egress: Egress },
  setup: async ({ config: { tenants, hosts, ownHosts }, deps: { secrets } }) => {
    const named = hosts.flatMap((text) => text.split(',')).map((host) => host.trim())
    return { egress: createEgress({ tenants, hosts: named.filter((host) => host !== ''), ownHosts }, secrets) }
  },
})
