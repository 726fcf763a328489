import { existsSync } from 'node:fs'
import type { ToolResult } from '#contracts/tools'
import type { Execution, Outcome, Processes } from './processes.ts'
import type { Workspace } from './workspace.ts'

/** What is left of a call's time for its answer: partial output in time is worth more than nothing. */
const answerMs = 1_000

/** bash where it is: models write for it. */
export const shellOf = (): string => ['/bin/bash', '/usr/bin/bash'].find((file) => existsSync(file)) ?? '/bin/sh'

export interface ShellInput {
  readonly command: string
  readonly timeoutSeconds?: number
  readonly cwd?: string
}

export interface Limits {
  readonly signal: AbortSignal
  readonly timeoutMs: number
}

export async function shell(
  { workspace, processes }: { readonly workspace: Workspace; readonly processes: Processes },
  { command, timeoutSeconds, cwd = '.' }: ShellInput,
  limits: Limits,
): Promise<ToolResult> {
  const timeoutMs = timeFor(timeoutSeconds, limits)
  const execution: Execution = {
    command: [shellOf(), '-c', command],
    cwd: await workspace.existing(cwd),
    timeoutMs,
    signal: limits.signal,
  }
  return told(await processes.execute(execution), timeoutMs)
}

/** A whole second less than the call has, so that its answer comes before nobody waits for it any more. */
export function timeFor(seconds: number | undefined, { timeoutMs }: Limits): number {
  const most = Math.max(timeoutMs - answerMs, timeoutMs / 2)
  return seconds === undefined ? most : Math.min(seconds * 1_000, most)
}

export function told({ code, killed, output }: Outcome, timeoutMs: number): ToolResult {
  const ending =
    killed === 'timeout'
      ? `It was killed after ${timeoutMs / 1_000} s.`
      : killed === 'cancelled'
        ? 'It was stopped.'
        : killed !== undefined
          ? `It was killed by ${killed}.`
          : `Exit code ${code}.`
  const text = output === '' || output.endsWith('\n') ? output : `${output}\n`
  return { ok: code === 0, content: `${text}[${ending}]` }
}
