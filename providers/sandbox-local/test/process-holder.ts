// A runner of its own that can be killed: launches the order that it is given, says so, pauses when it is told to, and stays.
import { once } from 'node:events'
import { sandboxProviderOf } from '#testing'
import plugin from '../process/index.ts'

const { order, dir } = JSON.parse(process.argv[2]!)
const entry = { name: 'sandbox-process', plugin, config: { allow: true, dir } }
const provider = (await sandboxProviderOf({ after: () => {} }, 'process', [entry]))!
const { sandboxId } = await provider.launch(order, new AbortController().signal)
process.stdout.write('launched\n')
await once(process.stdin, 'data')
await provider.pause(sandboxId)
process.stdout.write('paused\n')
setInterval(() => {}, 60_000)
