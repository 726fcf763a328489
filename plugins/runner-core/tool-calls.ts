import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import type { SessionSandbox, ToolContext, Toolkit } from '#contracts/tools'
import type { SandboxWorkers } from '#contracts/workers'
import { toolNotAllowed } from './errors.ts'
import type { Ledgers } from './ledger.ts'
import { hasSandbox } from './links.ts'
import type { Held } from './sessions.ts'
import type { Turns } from './turns.ts'

/** Calls tools on behalf of sessions: only those of their toolkit, stopped with their run, and not twice in a run that is tried again. */
export const createToolCalls =
  (
    toolkit: Toolkit,
    turns: Turns,
    ledgers: Ledgers,
    sandboxes: SandboxWorkers | undefined,
  ): RunnerSessions['invokeTool'] =>
  async (session, name, input, signal, callId) => {
    if (!session.tools.includes(name)) {
      throw toolNotAllowed({ message: `The tool '${name}' is not in this session's toolkit.` })
    }
    const turn = turns.of(session as Held)
    const runId = session.activeRunId ?? ''
    const ledger = runId === '' ? undefined : ledgers.of(session)
    // A cancelled run stops the tool it is waiting for, whoever holds the connection. A connection that breaks under a run
    // that is tried again stops nothing: the next attempt gets the result.
    const stop = !turn ? signal : ledger ? turn.signal : AbortSignal.any([signal, turn.signal])
    const { profile } = session
    const context: ToolContext = {
      tenantId: session.tenantId,
      sessionId: session.id,
      profileName: profile.name,
      skills: profile.skills,
      runId,
      depth: turn?.depth ?? 0,
      signal: stop,
      ...(runId === '' || callId === undefined ? {} : { idempotencyKey: `${runId}:${callId}` }),
      ...(turn ? { report: turn.report } : {}),
      ...(sandboxes && hasSandbox(profile) ? { sandbox: sandboxOf(sandboxes, session, stop) } : {}),
    }
    if (!ledger) return toolkit.invoke(name, input, context)
    return ledger.call(name, input, callId, async () => {
      const result = await toolkit.invoke(name, input, context)
      return { result, finished: result.ok || !stop.aborted }
    })
  }

const sandboxOf = (sandboxes: SandboxWorkers, session: RunnerSession, signal: AbortSignal): SessionSandbox => ({
  call: (name, input, timeoutMs) => sandboxes.callTool(session, name, input, { signal, timeoutMs }),
})
