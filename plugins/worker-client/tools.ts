import type { FastifyBaseLogger } from 'fastify'
import type { ToolResult } from '#contracts/tools'
import type { WorkerCommand } from '#contracts/wire/worker'
import type { WorkerTools } from '#contracts/workers'
import { type Lifetime, persist } from './backoff.ts'
import type { Runner } from './runner.ts'

type ToolCommand = Extract<WorkerCommand, { kind: 'tool' }>

export interface ToolCalls {
  start(command: ToolCommand): void
  cancel(callId: string): void
  stop(): void
}

export interface ToolCallsOptions {
  readonly tools: WorkerTools | undefined
  readonly runner: Runner
  readonly log: FastifyBaseLogger
  readonly life: Lifetime
}

/** How long a result is kept for a runner that is away: longer than it takes to restart, shorter than it is waited for. */
const answerMs = 60_000

/** Calls of the tools on this machine, each answered on its own. */
export function createToolCalls({ tools, runner, log, life }: ToolCallsOptions): ToolCalls {
  const active = new Map<string, AbortController>()
  const call = async ({ callId, name, input, timeoutMs }: ToolCommand): Promise<void> => {
    const stop = new AbortController()
    active.set(callId, stop)
    try {
      const result = await attempt(tools, name, input, { signal: stop.signal, timeoutMs })
      if (stop.signal.aborted) return
      await persist(() => runner.answerTool(callId, result, life.over), life, answerMs)
    } catch (err) {
      if (!life.over.aborted) log.warn({ err, callId }, 'the result of a tool was not delivered')
    } finally {
      active.delete(callId)
    }
  }
  return {
    start: (command) => void call(command),
    cancel: (callId) => active.get(callId)?.abort(),
    stop() {
      for (const stop of active.values()) stop.abort()
    },
  }
}

async function attempt(tools: WorkerTools | undefined, ...call: Parameters<WorkerTools['call']>): Promise<ToolResult> {
  if (!tools) return { ok: false, content: 'This worker has no tools.' }
  try {
    return await tools.call(...call)
  } catch {
    return { ok: false, content: 'The tool failed.' }
  }
}
