import { createOutputSchemas } from '#contracts/output-schema'
import type { Runtime, RuntimeContext } from '#contracts/runtime'
import type { RuntimeBConfig } from './config.ts'
import { runtimeBusy } from './errors.ts'
import { createHomes } from './homes.ts'
import { findCodex } from './package.ts'
import { runTurn } from './run.ts'
import { type Patience, patience as usualPatience } from './patience.ts'

export interface RuntimeBOptions {
  /** Another program than the installed one. */
  readonly command?: readonly [string, ...string[]]
  readonly patience?: Patience
}

export async function runtimeB(
  { config, egress, log, onStop }: Omit<RuntimeContext<RuntimeBConfig>, 'models'>,
  { command, patience = usualPatience }: RuntimeBOptions = {},
): Promise<Runtime> {
  const homes = await createHomes()
  onStop(homes.close)
  // Looked for again until it is there: installing it needs no restart.
  let program = command
  const found = async () => (program ??= [await findCodex()])
  await found().catch((error: Error) => log.info(error.message))
  const schemas = createOutputSchemas()
  let running = 0
  return {
    contract: 'runtime/1',
    async *run(envelope, signal) {
      if (running >= config.maxProcesses) throw runtimeBusy({ retryable: true })
      running++
      try {
        const deps = { config, egress, log, homes, schemas, command: await found(), patience }
        yield* runTurn(envelope, signal, deps)
      } finally {
        running--
      }
    },
    exportState: homes.exportState,
    hydrate: (sessionId, { bytes }) => homes.hydrate(sessionId, bytes),
    has: homes.has,
    forget: homes.forget,
  }
}
