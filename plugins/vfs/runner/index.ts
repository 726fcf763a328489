import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, Settings } from '#kernel'
import { limitErrors } from '#contracts/limits'
import { objectErrors } from '#contracts/object-store'
import { Signers } from '#contracts/signing'
import { PlatformTools } from '#contracts/tools'
import { vfsErrors } from '#contracts/vfs'
import { VfsManager } from '#contracts/vfs-manager'
import { followTls, PeerTls } from '#kit'
import { createVfsClient, ownUrl } from '../client.ts'
import { Leases } from './leases.ts'
import { fileTools } from './tools.ts'

/** The VirtualFS for a runner's sessions: their leases on the VirtualFS server, and the tools with which agents use it. */
export default definePlugin({
  name: 'vfs-runner',
  config: Settings({
    baseUrl: Type.Optional(
      Type.String({
        pattern: '^https?://[^\\s]+$',
        description:
          'URL of the VirtualFS server; by default the listener vfs of this role. With neither sessions have no VirtualFS.',
      }),
    ),
    tls: PeerTls,
  }),
  errors: [vfsErrors, objectErrors, limitErrors],
  requires: { signers: Signers },
  provides: { manager: VfsManager, tools: PlatformTools },
  async setup({ config, deps, listeners, metrics, log, urlOf, onStop }) {
    // The conductors' key gives access to every secret of every tenant. It is used only if this process is a conductor as well.
    const signer = deps.signers.get('runner') ?? deps.signers.get('vfs')
    // A VirtualFS server in this process can be used only if requests can be signed with a key.
    const own = listeners.includes('vfs') && signer ? () => ownUrl(urlOf) : undefined
    const baseUrl = config.baseUrl ?? own
    if (baseUrl === undefined) return { manager: nothing, tools: {} }
    if (!signer) {
      throw new Error(
        'requests to the VirtualFS server cannot be signed: set RUNNER_SIGNING_KEY_CURRENT to the same key as on that server',
      )
    }
    const client = createVfsClient({ baseUrl, signer, tls: followTls(config.tls, log) })
    onStop(() => client.dispose())
    const manager = new Leases(client, log)
    const gauge: Gauge = new Gauge({
      name: 'runner_vfs_leases',
      help: 'Sessions of this runner that have used the VirtualFS.',
      registers: [metrics],
      collect: () => gauge.set(manager.size),
    })
    return { manager, tools: Object.fromEntries(fileTools.map((tool) => [tool.name, tool])) }
  },
})

/** The VirtualFS of a runner without a server: no session has files. */
const nothing: VfsManager = {
  of: () => undefined,
  leases: () => [],
  lease: async () => undefined,
  forget() {},
  async close() {},
}
