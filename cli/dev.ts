import { join, resolve } from 'node:path'
import { type Command, InvalidArgumentError } from 'commander'
import { BootError, type Entry } from '#kernel'
import { presentBilling } from '#contracts/billing'
import { environment, type Environment, loadPlugin, loadRole, root } from '../kernel/config.ts'
import { type DevAgent, devData, type DevSecrets, type ReadyLine } from './dev-data.ts'
import { getSigned, runnerKeyVariable, runnerSigner } from './signed-requests.ts'
import { issueRecorded, lender, type Platform } from './platform.ts'
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
      const { plugin, lent } = lender()
      const plugins = [...shipped.plugins, ...(await added(options.with)), { name: plugin.name, plugin }]
      const role = { ...shipped, plugins }
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
          platform: lent(),
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
        const sandboxes = await sandboxesOf(line.runnerUrl, given)
        terminal.print(line, () => welcome(line, { env: given, folder: options.data, sandboxes }))
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
      // In development every tenant may use what asks whom it is for.
      return { name: plugin.name, plugin, config: 'tenants' in plugin.config.properties ? { tenants: '*' } : {} }
    }),
  )

/** Values for the variables that an operator would set; a variable that is set wins. */
function devEnvironment(folder: string, secrets: DevSecrets): Environment {
  return {
    AGENT_ORC_DATA: folder,
    AGENT_API_KEY_PEPPER: secrets.pepper,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: secrets.signingKey,
    AGENT_ORC_WEBHOOK_KEY: secrets.webhookKey,
    AGENT_ORC_MASTER_KEY: secrets.masterKey,
    VFS_INTERNAL_SIGNING_KEY_CURRENT: secrets.vfsKey,
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: secrets.workerKey,
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

async function sandboxesOf(runnerUrl: string, env: Environment): Promise<string> {
  const reply = await getSigned(`${runnerUrl}/runner/info`, runnerSigner(env[runnerKeyVariable]))
  const { substrates } = (await reply.json()) as { substrates: string[] }
  return sandboxesSaid(substrates)
}

const openly = 'process (isolates nothing: agents act as you, with your files and your network)'

/** What the welcome says of the sandbox providers that there are. */
export const sandboxesSaid = (providers: readonly string[]): string =>
  providers.length > 0
    ? providers.map((name) => (name === 'process' ? openly : name)).join(', ')
    : `none, so agents have no shell and no files. Install bubblewrap 0.8 or newer (Linux), or, where you trust
             every prompt, set AGENT_ORC_SANDBOX_PROCESS=true: agents then act as you.`

interface Welcome {
  readonly env: Environment
  readonly folder: string
  readonly sandboxes: string
}

function welcome(line: ReadyLine, { env, folder, sandboxes }: Welcome): string {
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
  Sandboxes  ${sandboxes}
  Agents     ${line.agents.map((a) => a.slug).join(', ')}, published in tenant ${line.tenant}

Try it:

  npx agent-orc chat${data} support "What is 17% of 2310?"

  curl -N ${agent.chatUrl}/stream \\
    -H 'Authorization: Bearer ${agent.key}' \\
    -H 'Content-Type: application/json' -d '{"message": "What is 17% of 2310?"}'

Ctrl-C stops it; ${folder} keeps everything.`
}

const devTenant = 'default'

interface SeedAgent {
  readonly profile: string
  readonly instructions: string
  readonly tools: readonly string[]
}

/** The agents use the built-in model, so that they answer the same with and without a key for a real one. */
const agents: readonly SeedAgent[] = [
  { profile: 'hello', instructions: 'Greet, and answer briefly.', tools: [] },
  {
    profile: 'support',
    instructions: 'Answer questions about Agent Orc from its documentation, and calculate when asked to.',
    tools: ['calculate', 'current_time', 'search_docs'],
  },
]

interface SeedOptions {
  readonly conductorUrl: string
  readonly gatewayUrl: string
  readonly platform: Platform
  /** What the last start on this data directory handed out. It is handed out again while it works. */
  readonly last: ReadyLine | undefined
}

/** Brings a development server to an owner's key, and with that, as anybody would, to two published agents and a key for each. */
async function seed(options: SeedOptions): Promise<Pick<ReadyLine, 'tenant' | 'apiKey' | 'agents'>> {
  const { conductorUrl, gatewayUrl, platform, last } = options
  const kept = last && (await works(`${conductorUrl}/api/profiles?limit=1`, last.apiKey)) ? last.apiKey : undefined
  const apiKey = kept ?? (await mintApiKey(platform))
  const api = client(conductorUrl, apiKey)
  if (presentBilling(platform.billing)) await fund(api)
  const seeded = await Promise.all(
    agents.map(async (agent): Promise<DevAgent> => {
      const slug = await publish(api, agent)
      const chatUrl = `${gatewayUrl}/v1/chat/${devTenant}/${slug}`
      const before = last?.agents.find((a) => a.profile === agent.profile)?.key
      // An unknown conversation is 404 to a good key and 401 to any other.
      const good = before !== undefined && (await works(`${chatUrl}/conversations/conv_none`, before))
      const key = good ? before : await mintAgentKey(api, agent.profile)
      return { profile: agent.profile, slug, chatUrl, key }
    }),
  )
  return { tenant: devTenant, apiKey, agents: seeded }
}

/** Where there is billing, publishing and chats need credit: a new server begins with some. */
async function fund(api: Client): Promise<void> {
  const wallet = await api('GET', '/api/billing/wallet')
  if (expectOk(wallet, 'read the wallet')['registered'] === true) return
  const grant = { tenantId: devTenant, cents: 1_000, reason: 'Development', reference: 'development' }
  expectOk(await api('POST', '/api/billing/grants', grant), 'give the tenant credit')
}

async function publish(api: Client, { profile, instructions, tools }: SeedAgent): Promise<string> {
  const path = `/api/profiles/${profile}`
  if ((await api('GET', path)).status === 404) {
    const body = { name: profile, model: 'builtin/demo', instructions, tools }
    expectOk(await api('POST', '/api/profiles', body), `create the profile ${profile}`)
  }
  const published = await api('GET', `${path}/published`)
  const agent =
    published.status === 404
      ? expectOk(
          await api('POST', `${path}/publish`, { slug: profile, exposeToolEvents: true }),
          `publish the profile ${profile}`,
        )
      : expectOk(published, `read how ${profile} is published`)
  return String(agent['slug'])
}

const mintApiKey = async (platform: Platform): Promise<string> => {
  const request = { tenantId: devTenant, role: 'owner', label: 'development', createdBy: 'agent-orc dev' } as const
  return (await issueRecorded(platform, request)).token
}

const mintAgentKey = async (api: Client, profile: string): Promise<string> => {
  const reply = await api('POST', `/api/profiles/${profile}/keys`, { label: 'development' })
  return String(expectOk(reply, `mint a key for ${profile}`)['token'])
}

const works = async (url: string, key: string): Promise<boolean> => {
  const reply = await fetch(url, { headers: { authorization: `Bearer ${key}` } })
  await reply.body?.cancel()
  return reply.ok || reply.status === 404
}

interface Reply {
  readonly status: number
  readonly body: Readonly<Record<string, unknown>>
}
type Client = (method: string, path: string, body?: unknown) => Promise<Reply>

const client =
  (url: string, key: string): Client =>
  async (method, path, body) => {
    const reply = await fetch(url + path, {
      method,
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    return { status: reply.status, body: (await reply.json()) as Reply['body'] }
  }

function expectOk({ status, body }: Reply, what: string): Reply['body'] {
  if (status < 300) return body
  const why = body['message'] ?? body['error']
  throw new CliError(`could not ${what}: the conductor answers ${status} ${String(why)}`)
}
