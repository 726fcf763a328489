import { createOutputSchemas } from '#kit/schemas'
import { defineRuntime, type Runtime, type RuntimeContext } from '#contracts/runtime'
import { archiveErrors } from '#kit/archive'
import { RuntimeBConfig } from './config.ts'
import { Homes } from './homes.ts'
import { codexProgram } from './app-server.ts'
import { runTurn } from './run.ts'
import { type Patience, patience as usualPatience } from './thread.ts'
import { runtimeBErrors } from './errors.ts'

/** The runtime `runtime_b`: Codex, with one `codex app-server` process per run and without any tool of this machine. */
export default defineRuntime({
  name: 'runtime_b',
  config: RuntimeBConfig,
  errors: [runtimeBErrors, archiveErrors],
  create: (ctx) => runtimeB(ctx),
})

export interface RuntimeBOptions {
  /** The program that is run instead of the installed one. */
  readonly command?: readonly [string, ...string[]]
  readonly patience?: Patience
}

export async function runtimeB(
  { config, egress, log, onStop }: Omit<RuntimeContext<RuntimeBConfig>, 'models' | 'loads'>,
  { command, patience = usualPatience }: RuntimeBOptions = {},
): Promise<Runtime> {
  const homes = new Homes()
  onStop(() => homes.close())
  const program = codexProgram()
  if (!command && program.missing !== undefined) log.info(program.missing)
  const schemas = createOutputSchemas()
  let running = 0
  return {
    contract: 'runtime/1',
    get missing() {
      return command ? undefined : program.missing
    },
    async *run(envelope, signal) {
      if (running >= config.maxProcesses) throw runtimeBErrors.runtimeBusy()
      running++
      try {
        const deps = { config, egress, log, homes, schemas, command: command ?? [program.path()], patience }
        yield* runTurn(envelope, signal, deps)
      } finally {
        running--
      }
    },
    exportState: (sessionId) => homes.exportState(sessionId),
    hydrate: (sessionId, { bytes }) => homes.hydrate(sessionId, bytes),
    has: (sessionId) => homes.has(sessionId),
    forget: (sessionId) => homes.forget(sessionId),
  }
}
