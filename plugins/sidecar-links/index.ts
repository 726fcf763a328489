import { Type } from '@sinclair/typebox'
import { definePlugin, isAppError, Settings, unavailable } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { sidecarLinkErrors } from '#contracts/runner-errors'
import { LocalSidecars, type SidecarLink, Sidecars } from '#contracts/sidecar'
import { Signers } from '#contracts/signing'
import { tenantHeader } from '#contracts/wire/runner'
import { createPeers, followTls, PeerTls, signedBy } from '#kit'
import { createRemoteSidecar, createSidecars, type KnownSidecar, sidecarPeers } from './sidecars.ts'

const url = (description: string) => Type.Optional(Type.String({ pattern: '^https?://[^\\s]+$', description }))

/** The runner's way to its sidecars: over HTTP where a URL is configured, else in process. */
export default definePlugin({
  name: 'sidecar-links',
  config: Settings({
    url: url('One sidecar for every runtime.'),
    general: url('The sidecar of `general`, instead of the shared one.'),
    runtimeA: url('The sidecar of `runtime_a`, instead of the shared one.'),
    runtimeB: url('The sidecar of `runtime_b`, instead of the shared one.'),
    tls: PeerTls,
  }),
  errors: sidecarLinkErrors,
  requires: { local: LocalSidecars, signers: Signers },
  provides: { sidecars: Sidecars, readiness: ReadinessChecks },
  async setup(ctx) {
    const { config } = ctx
    const identity = signedBy(ctx.deps.signers.get('runner'), tenantHeader)
    const peers = createPeers({ ...sidecarPeers, identity, tls: followTls(config.tls, ctx.log) })
    ctx.onStop(() => peers.close())
    const byUrl = new Map<string, KnownSidecar>()
    const at = (address: string): KnownSidecar => {
      const known = byUrl.get(address) ?? { link: createRemoteSidecar(peers.at(address)), url: address }
      byUrl.set(address, known)
      return known
    }
    const own = new Map<string, KnownSidecar>()
    if (config.general) own.set('general', at(config.general))
    if (config.runtimeA) own.set('runtime_a', at(config.runtimeA))
    if (config.runtimeB) own.set('runtime_b', at(config.runtimeB))
    const local = ctx.deps.local.get('local')
    const shared = config.url ? at(config.url) : local && { link: local, url: '' }
    const links = [...new Set([...own.values(), ...(shared ? [shared] : [])].map(({ link }) => link))]
    return { sidecars: createSidecars(own, shared), readiness: { sidecar: () => anyAnswers(links) } }
  },
})

/** A runner without any sidecar may still have sandboxes; one whose sidecars are all silent executes nothing. */
async function anyAnswers(links: readonly SidecarLink[]): Promise<void> {
  if (links.length === 0) return
  await Promise.any(links.map((link) => link.health())).catch(({ errors }: AggregateError) => {
    const refused = errors.find((error) => isAppError(error) && error.detail['status'] === 401)
    throw refused ?? unavailable({ message: 'No sidecar answers.' })
  })
}
