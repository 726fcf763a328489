import { join, resolve } from 'node:path'
import { type Command, InvalidArgumentError } from 'commander'
import { BootError, type Entry } from '#kernel'
import { environment, type Environment, loadPlugin, loadRole, root } from '../kernel/config.ts'
import { devData, type DevSecrets, type ReadyLine } from './dev-data.ts'
import { seed } from './dev-seed.ts'
import { serve } from './start.ts'
import { CliError, terminalOf } from './terminal.ts'

interface DevOptions {
  readonly port?: number
  readonly data: string
  readonly with: readonly string[]
}

export function addDev(program: Command): void {
  program
    .command('dev')
    .description('run everything in this process: database, all roles, two published agents and the keys to use them')
    .option('--port <n>', 'port of the conductor; the other listeners take the next ones. 0: free ports', portNumber)
    .option('--data <dir>', 'where everything is kept', '.agent-orc')
    .option('--with <file...>', 'add plugins of yours: a file, or a folder with an index.ts', [])
    .option('--json', 'print the ready line as JSON, and nothing else on stdout')
    .action(async (options: DevOptions, command: Command) => {
      const terminal = terminalOf(command)
      const data = devData(options.data)
      const given = environment()
      const secrets = await data.secrets()
      const env = { ...devEnvironment(data.folder, secrets), ...nonEmpty(given) }
      const shipped = await loadRole(join(root, 'config/dev.yaml'), { env: { ...env, ...ports(options.port) } })
      const role = { ...shipped, plugins: [...shipped.plugins, ...(await added(options.with))] }
      const onStep = (step: string): void => terminal.step(`  ${step}`)
      const served = await serve([role], { onStep }).catch((error: unknown) => {
        terminal.step('')
        throw portIsTaken(error) ? new CliError(`${error.problems.join('\n')}\nor choose free ports: --port 0`) : error
      })
      terminal.step('')
      const urls = served.running[0]!.urls
      try {
        const seeded = await seed({
          conductorUrl: urls['conductor']!,
          gatewayUrl: urls['gateway']!,
          bootstrapKey: env['AGENT_ORC_BOOTSTRAP_KEY']!,
          last: await data.lastReady(),
        })
        const line: ReadyLine = {
          ready: true,
          conductorUrl: urls['conductor']!,
          gatewayUrl: urls['gateway']!,
          runnerUrl: urls['runner']!,
          sidecarUrl: urls['sidecar']!,
          internalUrl: urls['internal']!,
          ...seeded,
          bootMs: Math.round(performance.now()),
        }
        await data.saveReady(line)
        terminal.print(line, () => welcome(line, given, options.data))
      } catch (error) {
        if (!served.stopping) {
          await served.stop()
          throw error
        }
      }
      await served.forever
    })
}

/** Plugins that the role file does not name, with their default settings. */
const added = (files: readonly string[]): Promise<Entry[]> =>
  Promise.all(
    files.map(async (file) => {
      const plugin = await loadPlugin(resolve(file), '').catch((error: unknown) => {
        throw new CliError((error as Error).message)
      })
      return { name: plugin.name, plugin }
    }),
  )

/** Values for the variables that an operator would set; a variable that is set wins. */
function devEnvironment(folder: string, secrets: DevSecrets): Environment {
  return {
    AGENT_ORC_DATA: folder,
    AGENT_API_KEY_PEPPER: secrets.pepper,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: secrets.signingKey,
    AGENT_ORC_WEBHOOK_KEY: secrets.webhookKey,
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: secrets.workerKey,
    AGENT_ORC_BOOTSTRAP_KEY: secrets.bootstrapKey,
  }
}

const listeners = ['CONDUCTOR', 'GATEWAY', 'RUNNER', 'SIDECAR', 'INTERNAL', 'WORKER']

/** The ports of the listeners. `--port` wins over variables, because it was typed just now. */
const ports = (first: number | undefined): Environment =>
  first === undefined
    ? {}
    : Object.fromEntries(listeners.map((name, i) => [`AGENT_ORC_${name}_PORT`, String(first === 0 ? 0 : first + i)]))

const portIsTaken = (error: unknown): error is BootError =>
  error instanceof BootError && codeOf((error.cause as Error | undefined)?.cause) === 'EADDRINUSE'

const codeOf = (error: unknown): string | undefined => (error as NodeJS.ErrnoException | undefined)?.code

const nonEmpty = (env: Environment): Environment =>
  Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))

function portNumber(text: string): number {
  const port = Number(text)
  if (!/^\d+$/.test(text) || port + listeners.length > 65_536) throw new InvalidArgumentError('Not a port number.')
  return port
}

function welcome(line: ReadyLine, env: Environment, folder: string): string {
  const agent = line.agents.find((a) => a.slug === 'support')!
  const key = env['OPENAI_API_KEY'] ? 'OPENAI_API_KEY' : env['ANTHROPIC_API_KEY'] ? 'ANTHROPIC_API_KEY' : undefined
  const model = key
    ? `the seeded agents stay on builtin/demo, which is no language model. ${key} is set: give a profile the model "${key === 'OPENAI_API_KEY' ? 'openai' : 'anthropic'}/<name>" to use it.`
    : 'builtin/demo: rules, no language model. Set OPENAI_API_KEY or ANTHROPIC_API_KEY and give a profile the model "openai/<name>" or "anthropic/<name>".'
  const data = folder === '.agent-orc' ? '' : ` --data ${folder}`
  return `
Agent Orc is ready after ${(line.bootMs / 1_000).toFixed(1)} s, for this machine only.

  Conductor  ${line.conductorUrl}   API of operators, key ${line.apiKey}
  Gateway    ${line.gatewayUrl}   public chat API
  Runner     ${line.runnerUrl}
  Sidecar    ${line.sidecarUrl}
  Model      ${model}
  Agents     ${line.agents.map((a) => a.slug).join(', ')}, published in tenant ${line.tenant}

Try it:

  npx agent-orc chat${data} support "What is 17% of 2310?"

  curl -N ${agent.chatUrl}/stream \\
    -H 'Authorization: Bearer ${agent.key}' \\
    -H 'Content-Type: application/json' -d '{"message": "What is 17% of 2310?"}'

Ctrl-C stops it; ${folder} keeps everything.`
}
