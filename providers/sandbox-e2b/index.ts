import { Agent } from 'undici'
import { Type } from '@sinclair/typebox'
import { Duration, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { createE2bApi } from './api.ts'
import { E2bProvider, createKeepAlive } from './provider.ts'
import { WorkerProcesses } from './worker-process.ts'

const address = (description: string) =>
  Type.Optional(Type.String({ pattern: '^(https?://.+)?$', expects: 'an http or https URL', description }))

/** Workers in the virtual machines of E2B, or of a service with its API. */
export default defineSandboxProvider({
  name: 'e2b',
  config: Settings({
    apiKey: Type.Optional(Type.String({ description: 'E2B_API_KEY. Without it the provider is not offered.' })),
    domain: Type.String({ default: 'e2b.app', description: 'E2B_DOMAIN.' }),
    apiUrl: address('E2B_API_URL: https://api.<domain> unless given.'),
    sandboxUrl: address('E2B_SANDBOX_URL: one address for all sandboxes, where E2B is hosted by oneself.'),
    template: Type.Optional(Type.String({ description: 'For profiles that name none.' })),
    command: Type.String({
      default: 'exec agent-orc start --config /opt/agent-orc/config/worker.yaml',
      description: 'Starts the worker inside, by /bin/sh.',
    }),
    home: Type.String({ default: '/home/user', description: 'Of the user that it runs as.' }),
    timeout: Duration('10m', 'A sandbox that its runner no longer keeps alive is paused after this.'),
    internet: Type.Boolean({ default: false, description: 'Sandboxes reach more of the network than the runner.' }),
  }),
  async create({ config, log, onStop }) {
    const { apiKey, domain, apiUrl, sandboxUrl, template, command, home, timeout, internet } = config
    if (!apiKey) return undefined
    const dispatcher = new Agent()
    onStop(() => dispatcher.destroy())
    const timeoutSeconds = Math.max(1, Math.ceil(timeout / 1_000))
    const api = createE2bApi({ dispatcher, apiUrl: apiUrl || `https://api.${domain}`, apiKey })
    const keepAlive = createKeepAlive({ api, timeoutSeconds, log })
    onStop(async () => keepAlive.stop())
    return new E2bProvider({
      api,
      workers: new WorkerProcesses({ dispatcher, command, domain, sandboxUrl: sandboxUrl || undefined, log }),
      keepAlive,
      rules: { template: template || undefined, timeoutSeconds, internet },
      home,
      log,
    })
  },
})
