// Loaded into a role's process before its own code (`node --expose-gc --import bench/inspected.ts`): answers over
// its IPC channel what only the process itself can know. An operator sees the same on /metrics, garbage included.
import { Session } from 'node:inspector'
import { setImmediate as turn } from 'node:timers/promises'
import { writeHeapSnapshot } from 'node:v8'
import type { Question, Reply } from './inspector.ts'

const tell = (told: Reply): void => {
  process.send?.(told)
}

process.on('message', ({ kind, file }: Question) => {
  if (kind === 'calls') calls()
  else void (kind === 'snapshot' ? snapshot(file ?? '') : measure())
})
// The open channel must not keep the role alive.
process.channel?.unref()
process.on('warning', ({ name, message }) => tell({ kind: 'warning', text: `${name}: ${message}` }))

async function measure(): Promise<void> {
  // Objects that the first collection finalizes are only freed by the second.
  for (let i = 0; i < 2; i++) {
    globalThis.gc?.()
    await turn()
  }
  const { rss, heapUsed, external } = process.memoryUsage()
  const resources: Record<string, number> = {}
  for (const type of process.getActiveResourcesInfo()) resources[type] = (resources[type] ?? 0) + 1
  tell({ kind: 'measured', measured: { rss, heapUsed, external, resources } })
}

let profiler: Session | undefined

/** Counts the calls since the last count, without files of npm packages and of Node. */
function calls(): void {
  if (profiler) {
    profiler.post('Profiler.takePreciseCoverage', (error, { result }) => {
      if (error) throw error
      const called = result
        .filter(({ url }) => url.startsWith('file:') && !url.includes('/node_modules/'))
        .flatMap(({ url, functions }) =>
          functions.map(({ functionName, ranges: [whole] }) => ({
            file: url,
            name: functionName,
            from: whole?.startOffset ?? 0,
            to: whole?.endOffset ?? 0,
            count: whole?.count ?? 0,
          })),
        )
        .filter(({ count }) => count > 0)
      tell({ kind: 'calls', calls: called })
    })
    return
  }
  profiler = new Session()
  profiler.connect()
  profiler.post('Profiler.enable')
  profiler.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  tell({ kind: 'calls', calls: [] })
}

async function snapshot(file: string): Promise<void> {
  tell({ kind: 'snapshot', file: writeHeapSnapshot(file) })
}
