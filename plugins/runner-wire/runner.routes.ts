import { type App, appError, isAppError, notFound } from '#kernel'
import { newId } from '#contracts/ids'
import type { RunnerService, RunnerSessions } from '#contracts/runner'
import type { Sidecars } from '#contracts/sidecar'
import { runnerWire, tenantHeader } from '#contracts/wire/runner'
import { serve } from '#kit'

/** Of specification 7: a substrate that does not answer is a failure of the runner, whatever it calls it itself. */
const leaseUnreadable = appError('upstream', 502, 'The substrate of the sandbox does not answer; try again.')
// The strings of specification 4.22.
const noVfsSession = appError('no vfs session', 404)
const noSandboxWorker = appError('no sandbox worker', 404)

interface Runner {
  readonly core: RunnerService
  readonly sessions: RunnerSessions
  readonly sidecars: Sidecars
}

/** What this runner is and can, what conductors tell it, and what its sessions hold outside of it. Counts are across tenants. */
export function runnerRoutes(app: App, { core, sessions, sidecars }: Runner): void {
  serve(app, runnerWire.info, async () => ({ json: await core.info() }))

  serve(app, runnerWire.runtimes, async () => {
    await sidecars.runtimes()
    const counts = new Map<string, number>()
    for (const { profile } of sessions.list()) counts.set(profile.runtime, (counts.get(profile.runtime) ?? 0) + 1)
    return {
      json: sidecars
        .slots()
        .map(({ runtime, mode, url }) => ({ runtime, mode, url, activeSessions: counts.get(runtime) ?? 0 })),
    }
  })

  serve(app, runnerWire.topology, async () => ({ json: await core.topology() }))

  serve(app, runnerWire.profiles, ({ headers }) => ({ json: [...core.profiles(headers[tenantHeader])] }))
  serve(app, runnerWire.putProfile, ({ headers, body }) => core.putProfile(headers[tenantHeader], body))
  serve(app, runnerWire.deleteProfile, ({ headers, params }) => core.deleteProfile(headers[tenantHeader], params.name))

  serve(app, runnerWire.pools, ({ headers }) => ({ json: [...core.pools(headers[tenantHeader])] }))
  serve(app, runnerWire.putPool, async ({ headers, body }) => {
    const pool = { ...body, id: body.id ?? newId('pool') }
    await core.putPool(headers[tenantHeader], pool)
    return { json: pool }
  })
  serve(app, runnerWire.deletePool, async ({ headers, params }) => {
    const tenantId = headers[tenantHeader]
    if (!core.pools(tenantId).some(({ id }) => id === params.id)) throw notFound()
    await core.deletePool(tenantId, params.id)
  })

  serve(app, runnerWire.takeBroadcast, async ({ headers, body }) => ({
    json: { revision: await core.takeBroadcast(headers[tenantHeader], body) },
  }))
  serve(app, runnerWire.behind, async ({ body }) => ({ json: { tenants: await core.behind(body.revisions) } }))

  // The answers for a VirtualFS without a manager, which is what a runner has here.
  serve(app, runnerWire.vfsLeases, () => ({ json: [] }))
  serve(app, runnerWire.vfsLease, () => {
    throw noVfsSession()
  })

  serve(app, runnerWire.workerLeases, async ({ headers }) => {
    const leases = await read(core.workerLeases(headers[tenantHeader]))
    return { json: leases.toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1)) }
  })
  serve(app, runnerWire.workerLease, async ({ headers, params }) => {
    const lease = await read(core.workerLease(headers[tenantHeader], params.id))
    if (!lease) throw noSandboxWorker()
    return { json: lease }
  })
  serve(app, runnerWire.invalidateSandbox, async ({ body }) => ({
    json: { invalidated: await core.invalidateSandbox(body.provider, body.sandboxId) },
  }))
}

const read = <T>(lease: Promise<T>): Promise<T> =>
  lease.catch((cause: unknown) => {
    throw isAppError(cause) && cause.status < 500 ? cause : leaseUnreadable({ cause })
  })
