import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { RunnerInfo, type RunnerService, type RunnerSessions, RunnerTopology } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import { RuntimeSlot } from './schema.ts'

const tags = ['runner']

/** What this runner is, what it can run, and how it is. Counts are of the process, across tenants. */
export function infoRoutes(app: App, core: RunnerService, sessions: RunnerSessions, sidecars: Sidecars): void {
  const byRuntime = (): Record<string, number> => {
    const counts: Record<string, number> = {}
    for (const { profile } of sessions.list()) counts[profile.runtime] = (counts[profile.runtime] ?? 0) + 1
    return counts
  }

  app.get(
    '/runner/info',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Say what this runner is',
        description: 'What conductors probe: its hash, what it can run, and whether it is about to stop.',
        response: { 200: RunnerInfo },
      },
    },
    async () => core.info(),
  )

  app.get(
    '/runner/runtimes',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'List runtimes',
        description: 'And which sidecar serves each.',
        response: { 200: Type.Array(RuntimeSlot) },
      },
    },
    async () => {
      await sidecars.runtimes()
      const counts = byRuntime()
      return sidecars.slots().map((slot) => ({ ...slot, activeSessions: counts[slot.runtime] ?? 0 }))
    },
  )

  app.get(
    '/runner/topology',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Show the process and its sidecars',
        description: 'Probes each sidecar. Slots that share one show the same instances: do not add them up.',
        response: { 200: RunnerTopology },
      },
    },
    async () => core.topology(),
  )
}
