// A process that begins a run at a model server, prints the id of the vendor's process, and waits to be killed:
// `node dies.ts <model server>`.
import { testEnvelope } from '#testing'
import { vendorProcesses } from './processes.ts'
import { model, runtimeAt } from './support.ts'

const runtime = await runtimeAt({ after() {} }, process.argv[2]!)
for await (const { type } of runtime.run(testEnvelope({ ...model, prompt: 'hi' }), new AbortController().signal)) {
  if (type === 'assistant')
    console.log(
      vendorProcesses()
        .map(({ pid }) => pid)
        .join(),
    )
}
