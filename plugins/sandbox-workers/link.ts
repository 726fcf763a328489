import { isAppError } from '#kernel'
import type { RunnerSession } from '#contracts/runner'
import type { SidecarLink } from '#contracts/sidecar'
import { sandboxUnreachable, sessionShutDown } from './errors.ts'
import type { Launcher } from './launcher.ts'
import { stateOf } from './sandbox.ts'
import type { WorkerTable } from './table.ts'
import { unlessAborted } from './waiting.ts'

/** The way to the worker of a session, wherever that is and whether or not it is there yet. */
export const createLink = (session: RunnerSession, table: WorkerTable, launcher: Launcher): SidecarLink => ({
  /** Starts nothing: a session without a sandbox is well when it can have one. */
  async health(signal) {
    launcher.substrateFor(session.profile)
    const worker = table.find(session.tenantId, session.id)
    if (worker?.sandbox && (await stateOf(worker.sandbox, signal)) === undefined) throw sandboxUnreachable()
    const { runtime } = session.profile
    const instance = worker?.sandbox?.sandboxId ?? ''
    return { ok: true, runtime, runtimes: [runtime], instance, inflight: worker?.uses.count ? 1 : 0 }
  },
  async *run(envelope, signal) {
    const worker = table.of(session)
    const leave = worker.uses.use()
    try {
      const { sandbox } = await unlessAborted(worker.ready(), signal)
      yield* sandbox.channel.run(envelope, signal, sandbox.runnerUrl)
    } catch (error) {
      // Unless it answered: not all of its connections need have been missed yet.
      if (!signal.aborted && !(isAppError(error) && error.status === 409)) worker.doubt()
      throw error
    } finally {
      leave()
    }
  },
  async exportState() {
    const worker = table.find(session.tenantId, session.id)
    // One that sleeps is not woken: it has uploaded its state before.
    if (!worker?.sandbox || worker.phase === 'paused') return worker?.state
    const leave = worker.uses.hold()
    try {
      return await worker.sandbox.channel.exportState()
    } finally {
      leave()
    }
  },
  hydrate: (_runtime, _sessionId, bundle) => table.of(session).replace(bundle),
  forget: async () => table.remove(session)?.close(sessionShutDown()),
})
