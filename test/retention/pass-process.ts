// A process that deletes runs of the database of its argument, with a long pause after the first batch: to be killed in it.
import { stage } from './stage.ts'

const { pass } = await stage({ after() {} } as never, { runs: 1, pauseMs: 60_000 }, process.argv[2])
await pass()
