// `npm run bench:workers`: how long a session with a worker of its own waits for its first event, cold, warm, paused and awake,
// by runtime and sandbox provider; what a tool call costs; what an idle worker holds. See docs/performance.md.
import { parseArgs } from 'node:util'
import { startModelServer } from '#testing'
import { say, withProcesses } from '../command.ts'
import { measureMemory } from './memory.ts'
import { measureMcp } from './mcp.ts'
import { measurePauses } from './pause.ts'
import { tables } from './report.ts'
import { cellsOf, startDev } from './dev.ts'
import { measureStarts } from './starts.ts'

const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '5' }, json: { type: 'boolean', default: false } },
})
const rounds = Number(values.rounds)

await withProcesses(async (processes) => {
  const model = await startModelServer(undefined, { record: false })
  processes.onStop(() => model.stop())
  const dev = await startDev(processes, model.url)
  const { cells, absent } = await cellsOf(dev)
  for (const what of absent) say(`NOT measured: ${what}`)
  const starts = []
  for (const cell of cells) {
    say(`${cell.runtime} in ${cell.provider ?? 'a static sidecar'}`)
    starts.push(await measureStarts(dev, cell, rounds))
  }
  say('tool calls')
  const mcp = await measureMcp(dev)
  const memory = []
  for (const provider of new Set(cells.flatMap((cell) => cell.provider ?? []))) {
    say(`idle workers in ${provider}`)
    memory.push(await measureMemory(dev, provider, rounds))
  }
  const pauses = []
  for (const { provider } of memory) {
    say(`pauses of ${provider}`)
    pauses.push(await measurePauses(provider, rounds))
  }
  const results = { starts, mcp, memory, pauses, absent }
  if (!values.json) process.stdout.write(`${tables(results)}\n`)
  process.stdout.write(`${JSON.stringify({ node: process.version, rounds, ...results })}\n`)
})
