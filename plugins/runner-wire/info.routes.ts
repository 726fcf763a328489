import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { RunnerInfo, type RunnerService, type RunnerSessions, RunnerTopology } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import { RuntimeSlot } from './schema.ts'

/** What this runner is, what it can run, and how it is. Counts are of the process, across tenants. */
export function infoRoutes(app: App, core: RunnerService, sessions: RunnerSessions, sidecars: Sidecars): void {
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

  app.get('/runner/topology', { ...access('network'), schema: { response: { 200: RunnerTopology } } }, async () =>
    core.topology(),
  )
}
