import { AppError, notFound } from '#kernel'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import type { LogChunk, RunDispatch, RunStatus, RunSummary, SubTask } from '#contracts/runs'

/** A run whose events the test writes. */
export interface ScriptedRun {
  readonly tenantId: string
  readonly task: SubTask & { id: string }
  readonly sessionId: string
  /** Appends events as one chunk; a `result` or `error` ends the run. */
  emit(...events: RuntimeEvent[]): void
  readonly followers: number
}

export interface ScriptedDispatch extends RunDispatch {
  readonly runs: Map<string, ScriptedRun>
  readonly started: (SubTask & { id: string })[]
  readonly cancelled: string[]
  /** Called for every dispatch: throws to refuse it, or writes events. */
  script: (task: SubTask & { id: string }, run: () => ScriptedRun) => void | Promise<void>
  /** While set, nothing answers. */
  away: boolean
  newest(): ScriptedRun
}

export const say = (text: string): RuntimeEvent => ({ type: 'assistant', text, delta: true })
export const finish = (text: string): RuntimeEvent => ({ type: 'result', text, finishReason: 'stop' })
export const fail = (code: string, message = 'http://provider.internal said no'): RuntimeEvent => ({
  type: 'error',
  code,
  message,
})

/** A conductor without a network: runs are scripted, their logs can be followed from anywhere. */
export function scriptedDispatch(): ScriptedDispatch {
  const all = new Map<string, ReturnType<typeof createRun>>()
  const unreachable = (): AppError => new AppError('upstream', 502, { message: 'no conductor at 10.0.0.1' })
  const dispatch: ScriptedDispatch = {
    runs: all,
    started: [],
    cancelled: [],
    away: false,
    script: (_task, run) => run().emit(say('Hel'), say('lo'), finish('Hello')),
    newest: () => [...all.values()].at(-1)!,
    async start(tenantId, task, signal) {
      if (dispatch.away) throw unreachable()
      dispatch.started.push(task)
      let run: ReturnType<typeof createRun> | undefined
      const create = (): ScriptedRun => {
        run ??= createRun(tenantId, task)
        all.set(task.id, run)
        return run
      }
      await dispatch.script(task, create)
      create()
      return { runId: task.id, sessionId: run!.sessionId, status: 'running', events: run!.read(0, signal) }
    },
    async *follow(_tenantId, runId, afterSeq, signal) {
      if (dispatch.away) throw unreachable()
      const run = all.get(runId)
      if (!run) throw notFound()
      yield* run.read(afterSeq, signal)
    },
    async find(_tenantId, runId) {
      if (dispatch.away) throw unreachable()
      return all.get(runId)?.summary()
    },
    async cancel(_tenantId, runId) {
      dispatch.cancelled.push(runId)
      all.get(runId)?.emit(fail('cancelled'))
    },
    ping: async () => {},
  }
  return dispatch
}

function createRun(tenantId: string, task: SubTask & { id: string }) {
  const sessionId = task.sessionId ?? `sess-0a1b2c3d-${Math.random().toString(16).slice(2, 10).padEnd(8, '0')}`
  const encoder = createEventEncoder(task.id, sessionId, 1)
  const lines: string[] = []
  const chunks: LogChunk[] = []
  const waiting = new Set<() => void>()
  let terminal: RuntimeEvent | undefined
  return {
    tenantId,
    task,
    sessionId,
    get followers() {
      return waiting.size
    },
    emit(...events: RuntimeEvent[]) {
      if (terminal) return
      const firstSeq = encoder.next
      const written = events.map((event) => encoder.line(event))
      lines.push(...written)
      chunks.push({ firstSeq, count: written.length, lines: Buffer.from(written.join('')) })
      terminal = events.find((event) => event.type === 'result' || event.type === 'error')
      for (const wake of waiting) wake()
    },
    async *read(afterSeq: number, signal: AbortSignal): AsyncGenerator<LogChunk> {
      let next = afterSeq
      while (!signal.aborted) {
        const chunk = chunks.find((c) => c.firstSeq + c.count - 1 > next)
        if (chunk) {
          const skip = Math.max(0, next + 1 - chunk.firstSeq)
          const firstSeq = chunk.firstSeq + skip
          const text = lines.slice(firstSeq - 1, chunk.firstSeq - 1 + chunk.count).join('')
          next = chunk.firstSeq + chunk.count - 1
          yield { firstSeq, count: next - firstSeq + 1, lines: Buffer.from(text) }
        } else if (terminal) {
          return
        } else {
          await new Promise<void>((resolve) => {
            const wake = (): void => {
              waiting.delete(wake)
              signal.removeEventListener('abort', wake)
              resolve()
            }
            waiting.add(wake)
            signal.addEventListener('abort', wake)
          })
        }
      }
    },
    summary(): RunSummary {
      const status: RunStatus = !terminal ? 'running' : terminal.type === 'result' ? 'ok' : 'error'
      return {
        runId: task.id,
        sessionId,
        status,
        subTask: { id: task.id, sessionId, profile: task.profile, prompt: task.prompt },
        startedAt: new Date().toISOString(),
        ...(terminal?.type === 'result' ? { result: terminal.text } : {}),
        ...(terminal?.type === 'error' ? { error: { code: terminal.code, message: terminal.message } } : {}),
      }
    },
  }
}
