import { draw, shown } from '../table.ts'
import type { McpFigures } from './mcp.ts'
import type { MemoryFigures } from './memory.ts'
import type { PauseFigures } from './pause.ts'
import type { Starts } from './starts.ts'

export interface Results {
  readonly starts: readonly Starts[]
  readonly mcp: McpFigures
  readonly memory: readonly MemoryFigures[]
  readonly pauses: readonly PauseFigures[]
  readonly absent: readonly string[]
}

export function tables({ starts, mcp, memory, pauses, absent }: Results): string {
  const both = (first: number | undefined, start: number | undefined): string =>
    start === undefined ? shown(first, 0) : `${shown(first, 0)} (${shown(start, 0)})`
  const head = ['runtime, worker', 'cold', 'warm pool', 'paused', 'awake']
  const rows = starts.map((one) => [
    `${one.runtime}, ${one.provider ?? 'static sidecar'}`,
    both(one.cold, one.coldStart),
    both(one.warm, one.warmStart),
    both(one.paused, one.pausedStart),
    shown(one.again, 0),
  ])
  return [
    'Milliseconds from POST /api/runs to the first text, medians; in brackets until the worker was there.',
    draw([head, ...rows]),
    '',
    `MCP tool call: p50 ${shown(mcp.p50, 2)} ms, p99 ${shown(mcp.p99, 2)} ms; a bare route of the same process ${shown(mcp.bareP50, 2)} ms.`,
    ...memory.map((one) => `Idle worker, ${one.provider}: ${shown(one.pssMb, 0)} MiB (share of ${one.workers}).`),
    ...pauses.map(
      (one) =>
        `Calls of ${one.provider}: launch ${shown(one.launch, 1)}, pause ${shown(one.pause, 1)}, resume ${shown(one.resume, 1)} ms.`,
    ),
    ...absent.map((what) => `Not measured: ${what}.`),
  ].join('\n')
}
