// Runs command lines one after the other in this process, as `severally` of spawned.ts asks: most of what a short command takes is its start.
import { main } from '../main.ts'
import type { Finished } from './spawned.ts'

const write = process.stdout.write.bind(process.stdout)
const finished: Finished[] = []
for (const args of JSON.parse(process.argv[2]!) as string[][]) {
  const said = { stdout: '', stderr: '' }
  for (const stream of ['stdout', 'stderr'] as const) {
    process[stream].write = (text: string | Uint8Array) => ((said[stream] += String(text)), true)
  }
  finished.push({ code: await main(['node', 'agent-orc', ...args]), ...said })
  // Each command listens once for a reader that has gone.
  process.stdout.removeAllListeners('error')
}
write(JSON.stringify(finished))
