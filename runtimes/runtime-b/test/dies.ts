// A process that prints the id of the program it has started for a run, and is then killed: `node dies.ts <model server>`.
import { model, children, stageAt } from './support.ts'

const { run } = await stageAt({ after() {} }, process.argv[2]!)
await run('hi', model, undefined, (event) => {
  if (event.type === 'assistant') void children().then(([pid]) => console.log(pid))
})
