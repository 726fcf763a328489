import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { definePlugin, type Running } from '#kernel'
import { Database } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { type PlatformTool, PlatformTools, type ToolContext } from '#contracts/tools'
import { freshDatabase, startModelServer, testRole } from '#testing'

/** What the tests read of an answer. */
// oxlint-disable-next-line typescript/no-explicit-any -- answers of every shape; assertions look at them.
export type Body = any
export type Call = (method: string, url: string, body?: unknown) => Promise<{ status: number; body: Body }>

/** A call of a tool that had its effect. */
export interface Effect {
  readonly tool: string
  readonly input: Readonly<Record<string, unknown>>
  readonly key: string | undefined
}

/** What outlives a server: a database, a model, and the effects of tools. */
export interface World {
  readonly dsn: string
  readonly bootstrap: string
  readonly modelUrl: string
  readonly effects: Effect[]
  /** What a tool does before its effect. */
  before: (tool: string, context: ToolContext) => Promise<void>
}

const asked = /^(?:(\w+)\((.*?)\);?)+$/

/**
 * The model calls what its prompt says, `pay({"sum":1});note({})`, all in one step for each line of it; at last it says back what the
 * tools answered.
 */
export async function world(t: Pick<TestContext, 'after'>): Promise<World> {
  const model = await startModelServer(t, {
    record: false,
    reply({ messages }) {
      const prompt = messages.findLastIndex(({ role }) => role === 'user')
      const { content } = messages[prompt]!
      const text = typeof content === 'string' ? content : (content as { text: string }[])[0]!.text
      const after = messages.slice(prompt + 1)
      const lines = text.split('\n').filter((line) => asked.test(line))
      const line = lines[after.filter(({ role }) => role === 'assistant').length]
      if (line === undefined) {
        const results = after.filter(({ role }) => role === 'tool').map((message) => JSON.stringify(message.content))
        return { text: `Done: ${results.join(' ')}` }
      }
      const calls = [...line.matchAll(/(\w+)\((.*?)\)(?:;|$)/g)]
      return {
        text: 'Well.',
        toolCalls: calls.map(([, name, given]) => ({ name: name!, arguments: JSON.parse(given || '{}') as unknown })),
      }
    },
  })
  const bootstrap = randomBytes(24).toString('hex')
  return { dsn: await freshDatabase(t), bootstrap, modelUrl: model.url, effects: [], before: async () => {} }
}

export interface Server {
  readonly kernel: Running
  readonly database: Database
  readonly jobs: Jobs
  readonly call: Call
  /** A caller with a key of this role. */
  as(role: 'member' | 'admin'): Promise<Call>
  /** Asks the gateway with the key of an agent, and resolves to all that the stream says. */
  chat(url: string, key: string, message: string): Promise<string>
  until<T>(look: () => Promise<T | undefined | false>): Promise<T>
  /** Starts a run, and resolves to its id. */
  run(profile: string, prompt: string, more?: object): Promise<string>
  /** The run once it is over. */
  over(id: string): Promise<Body>
  /** The approvals of a run, once there are so many that wait. */
  waiting(runId: string, count?: number): Promise<Body[]>
  /** The run is nobody's. */
  parked(runId: string): Promise<void>
}

/** All roles in one process, on real ports, which may be stopped while others go on with the same database. */
export async function serve(
  t: Pick<TestContext, 'after'>,
  w: World,
  env: Readonly<Record<string, string>> = {},
): Promise<Server> {
  const parts: { database: Database; jobs: Jobs }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, jobs: Jobs },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const tool = (name: string): PlatformTool => ({
    name,
    description: `Does ${name}.`,
    inputSchema: { type: 'object', additionalProperties: true },
    async execute(input, context) {
      await w.before(name, context)
      w.effects.push({ tool: name, input, key: context.idempotencyKey })
      return { ok: true, content: `${name} ${JSON.stringify(input)}` }
    },
  })
  const tools = definePlugin({
    name: 'test-tools',
    provides: { tools: PlatformTools },
    setup: async () => ({ tools: { pay: tool('pay'), note: tool('note') } }),
  })
  const ports = ['GATEWAY', 'CONDUCTOR', 'INTERNAL', 'RUNNER', 'WORKER', 'SIDECAR', 'VFS']
  const variables = {
    ...Object.fromEntries(ports.map((name) => [`AGENT_ORC_${name}_PORT`, '0'])),
    POSTGRES_DSN: w.dsn,
    LOG_LEVEL: process.env['LOG_LEVEL'] ?? 'error',
    RUNNER_BASE_URL: '',
    OPENAI_BASE_URL: w.modelUrl,
    AGENT_ORC_BOOTSTRAP_KEY: w.bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    AGENT_ORC_ADMIN_TENANT: 'default',
    AGENT_ORC_WEBHOOK_KEY: Buffer.alloc(32, 7).toString('base64'),
    ...env,
  }
  const kernel = await testRole(t, 'dev', [probe, tools], variables, { listen: true })
  const { database, jobs } = parts[0]!
  const callerWith =
    (token: string): Call =>
    async (method, url, body) => {
      const reply = await fetch(`${kernel.urls['conductor']}${url}`, {
        method,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      })
      const text = await reply.text()
      return { status: reply.status, body: text === '' ? {} : (JSON.parse(text) as Body) }
    }
  const call = callerWith(w.bootstrap)
  const until: Server['until'] = async (look) => {
    for (;;) {
      const found = await look()
      if (found !== undefined && found !== false) return found
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
  }
  return {
    kernel,
    database,
    jobs,
    call,
    until,
    async as(role) {
      const { body } = await call('POST', '/api/api-keys', { label: role, role })
      return callerWith(body.token)
    },
    async chat(url, key, message) {
      const reply = await fetch(`${kernel.urls['gateway']}${url}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body: JSON.stringify({ message }),
      })
      return reply.text()
    },
    async run(profile, prompt, more = {}) {
      const { status, body } = await call('POST', '/api/runs', { profile, prompt, ...more })
      if (status !== 202) throw new Error(`no run: ${JSON.stringify(body)}`)
      return body.runId
    },
    over: (id) =>
      until(async () => {
        const { body } = await call('GET', `/api/runs/${id}`)
        return body.finishedAt === undefined ? undefined : body
      }),
    waiting: (runId, count = 1) =>
      until(async () => {
        const { body } = await call('GET', `/api/approvals?runId=${runId}&status=waiting`)
        return body.length === count ? (body as Body[]) : undefined
      }),
    async parked(runId) {
      await until(async () => {
        const [rows] = await database.batch<[object[]]>('default', [
          {
            text: `SELECT 1 FROM runs WHERE tenant_id = 'default' AND id = $1 AND claim_owner = 'parked'`,
            values: [runId],
          },
        ])
        return rows.length > 0
      })
    },
  }
}
