import { Type } from '@sinclair/typebox'
import { Duration, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { SandboxAgents } from './agent.ts'
import { E2bApi } from './api.ts'
import { E2bProvider } from './provider.ts'
import { WorkerProcesses } from './worker-process.ts'

const address = (description: string) =>
  Type.Optional(Type.String({ pattern: '^(https?://.+)?$', expects: 'an http or https URL', description }))

/** Workers in the virtual machines of E2B, or of a service with its API. */
export default defineSandboxProvider({
  name: 'e2b',
  config: Settings({
    apiKey: Type.Optional(Type.String({ description: 'E2B_API_KEY. Without it the provider is not offered.' })),
    domain: Type.String({ default: 'e2b.app', description: 'E2B_DOMAIN.' }),
    apiUrl: address('E2B_API_URL: https://api.<domain> by default.'),
    sandboxUrl: address('E2B_SANDBOX_URL: one address for all sandboxes of a self-hosted E2B.'),
    template: Type.Optional(Type.String({ description: 'The template for profiles that name none.' })),
    command: Type.String({
      default: 'exec agent-orc start --config /opt/agent-orc/config/worker.yaml',
      description: 'Command that starts the worker inside, run by a login shell of bash.',
    }),
    home: Type.String({ default: '/home/user', description: 'Home directory of the user that it runs as.' }),
    timeout: Duration('10m', 'A sandbox that its runner no longer keeps alive is paused after this.'),
    internet: Type.Boolean({ default: false, description: 'Whether sandboxes may reach other hosts than the runner.' }),
  }),
  async create({ config, log, onStop }) {
    const { apiKey, domain, apiUrl, sandboxUrl, template, command, home, timeout, internet } = config
    if (!apiKey) return undefined
    const e2b = await import('e2b').catch((cause: unknown) => {
      throw new Error("the sandbox provider 'e2b' needs the package e2b, which is not installed: npm install e2b", {
        cause,
      })
    })
    // Pass these explicitly, because the package would otherwise read them from the environment of this process.
    const connection = {
      apiKey,
      validateApiKey: false,
      debug: false,
      domain,
      apiUrl: apiUrl || `https://api.${domain}`,
      ...(sandboxUrl ? { sandboxUrl } : {}),
    }
    const stopping = new AbortController()
    onStop(async () => stopping.abort())
    const timeoutSeconds = Math.max(1, Math.ceil(timeout / 1_000))
    const where = new e2b.ConnectionConfig(connection)
    const api = new E2bApi(new e2b.ApiClient(where), stopping.signal)
    const agents = new SandboxAgents(where)
    onStop(() => agents.close())
    const provider = new E2bProvider({
      api,
      workers: new WorkerProcesses({ agents, command, log }),
      rules: { template: template || undefined, timeoutSeconds, internet },
      home,
      log,
    })
    onStop(async () => provider.stop())
    return provider
  },
})
