// Loaded into a role's process before its own code (`node --expose-gc --import bench/inside.ts`): tells over the channel
// what only the process itself can know. An operator sees the same on /metrics, with garbage in it.
import { Session } from 'node:inspector'
import { setImmediate as turn } from 'node:timers/promises'
import { writeHeapSnapshot } from 'node:v8'
import type { Question, Told } from './asked.ts'

const tell = (told: Told): void => {
  process.send?.(told)
}

process.on('message', ({ kind, file }: Question) => {
  if (kind === 'calls') calls()
  else void (kind === 'snapshot' ? snapshot(file ?? '') : measure())
})
// A role must end although somebody could still ask.
process.channel?.unref()
process.on('warning', ({ name, message }) => tell({ kind: 'warning', text: `${name}: ${message}` }))

async function measure(): Promise<void> {
  // What the first collection finalises is only gone after the second.
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

/** Taking a count resets it. Files that came with npm or with Node are nobody's concern. */
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
