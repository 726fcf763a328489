import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Command } from 'commander'
import { environment } from '../kernel/config.ts'
import { getSigned, runnerKeyVariable, runnerSigner } from './signed-requests.ts'
import { CliError } from './terminal.ts'

const suite = fileURLToPath(new URL('./conformance/sidecar.ts', import.meta.url))
const healthMs = 10_000

/** What the suite is told, as its one argument in JSON. Prompts hold `{word}` where a word goes. */
export interface SidecarCheck {
  readonly url: string
  readonly runtime: string
  readonly model?: string
  readonly say: string
  readonly hang?: string
  readonly tool?: string
  readonly tell: string
  readonly ask: string
  readonly state: boolean
  readonly replays: boolean
  readonly mcpHost: string
}

interface Options extends Omit<SidecarCheck, 'runtime'> {
  readonly runtime?: string
  readonly reporter: string
}

export function addConformance(program: Command): void {
  program
    .command('conformance')
    .description('test somebody else’s part against the contract that the bundled ones pass')
    .command('sidecar')
    .description(
      `test a running sidecar, in whatever language it is written; requests are signed when ${runnerKeyVariable} is set`,
    )
    .requiredOption('--url <url>', 'where it answers, e.g. http://127.0.0.1:7070')
    .option('--runtime <name>', 'the runtime to test; what /health says by default')
    .option('--model <provider/model>', 'the model that the profile names')
    .option('--say <prompt>', 'a prompt whose answer contains {word}', 'Answer with this word only: {word}')
    .option('--hang <prompt>', 'a prompt whose answer streams until it is stopped; cancelling is not tested without it')
    .option('--tool <prompt>', 'a prompt that makes it call a tool; the session offers `echo` and `fail`')
    .option('--tell <prompt>', 'a prompt to remember {word} by', 'Remember this word: {word}')
    .option('--ask <prompt>', 'a prompt whose answer then contains it', 'Which word should you remember?')
    .option('--no-state', 'it keeps no conversations: memory and the state routes are not tested')
    .option('--replays', 'a repeated attempt goes on behind what is finished (docs/plugins.md)', false)
    .option('--mcp-host <address>', 'address of this machine under which the sidecar reaches the tools', '127.0.0.1')
    .option('--reporter <name>', 'spec, tap, dot or junit', 'spec')
    .action(async (options: Options) => {
      const runtime = options.runtime ?? (await runtimeAt(options.url))
      const check: SidecarCheck = { ...options, runtime }
      // A process of its own: the test runner reports and sets the exit code when everything in it is over.
      const args = [`--test-reporter=${options.reporter}`, suite, JSON.stringify(check)]
      const child = spawn(process.execPath, args, { stdio: 'inherit' })
      const [code] = (await once(child, 'exit')) as [number | null]
      if (code !== 0) throw new CliError(`the sidecar at ${options.url} does not meet the contract of a runtime`)
    })
}

async function runtimeAt(url: string): Promise<string> {
  const sign = runnerSigner(environment()[runnerKeyVariable])
  const health = await getSigned(`${url.replace(/\/+$/, '')}/health`, sign, AbortSignal.timeout(healthMs))
    .then(async (response) => {
      const body = (await response.json()) as { ok?: unknown; runtime?: unknown }
      return { ...body, refused: response.status === 401 }
    })
    .catch((cause: unknown) => {
      throw new CliError(`no sidecar answers at ${url}/health: ${(cause as Error).message}`)
    })
  if (health.refused) {
    throw new CliError(`the sidecar at ${url} requires authentication: set ${runnerKeyVariable} to its key`, 2)
  }
  if (health.ok !== true || typeof health.runtime !== 'string') {
    throw new CliError(`GET ${url}/health must answer {"ok": true, "runtime": "…"}`)
  }
  if (health.runtime === 'all') throw new CliError('this sidecar serves several runtimes: choose one with --runtime', 2)
  return health.runtime
}
