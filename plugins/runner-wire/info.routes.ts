import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { RunnerInfo, type RunnerService, type RunnerSessions } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import { RuntimeSlot, Topology } from './schema.ts'
import { createSidecarWatch, processSnapshot } from './topology.ts'

/** What this runner is, what it can run, and how it is. Counts are of the process, across tenants. */
export function infoRoutes(app: App, core: RunnerService, sessions: RunnerSessions, sidecars: Sidecars): void {
  const observe = createSidecarWatch(sidecars)
  const byRuntime = (): Record<string, number> => {
    const counts: Record<string, number> = {}
    for (const { profile } of sessions.list()) counts[profile.runtime] = (counts[profile.runtime] ?? 0) + 1
    return counts
  }

  app.get('/runner/info', { ...access('network'), schema: { response: { 200: RunnerInfo } } }, async () => core.info())

  app.get(
    '/runner/runtimes',
    { ...access('network'), schema: { response: { 200: Type.Array(RuntimeSlot) } } },
    async () => {
      await sidecars.runtimes()
      const counts = byRuntime()
      return sidecars.slots().map((slot) => ({ ...slot, activeSessions: counts[slot.runtime] ?? 0 }))
    },
  )

  app.get('/runner/topology', { ...access('network'), schema: { response: { 200: Topology } } }, async () => ({
    process: processSnapshot(),
    activeSessions: sessions.list().length,
    sessionsByRuntime: byRuntime(),
    sidecars: await observe(),
  }))
}
