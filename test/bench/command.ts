import { createProcesses, type Processes } from './processes.ts'

/** Tells people what is going on, on stderr: stdout has the figures. */
export const say = (text: string): void => void process.stderr.write(`${text}\n`)

/** Reads the options of a command and runs it. What is wrong with them is said with the usage, and the exit code is 2. */
export async function runCommand<Options>(
  usage: string,
  readOptions: (args: string[]) => Options,
  main: (options: Options) => Promise<void>,
): Promise<void> {
  let options: Options
  try {
    options = readOptions(process.argv.slice(2))
  } catch (error) {
    say(`${error instanceof Error ? error.message : String(error)}\n${usage}`)
    process.exitCode = 2
    return
  }
  await main(options)
}

/** Runs `work` with processes of its own, which are stopped when it ends, fails or is interrupted. */
export async function withProcesses(work: (processes: Processes) => Promise<void>): Promise<void> {
  const processes = createProcesses()
  let interrupted = false
  const interrupt = (): void => {
    interrupted = true
    say('stopping')
    void processes.stop().then(() => process.exit(130))
  }
  process.once('SIGINT', interrupt)
  process.once('SIGTERM', interrupt)
  try {
    await work(processes)
  } catch (error) {
    // What fails while everything is being stopped has not failed by itself.
    if (!interrupted) throw error
  } finally {
    await processes.stop()
  }
}
