import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import type { TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Entry, Plugin } from '#kernel'
import { type LaunchOrder, type SandboxProvider, SandboxProviders, type SandboxState } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { entriesOf } from './kernel.ts'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { workerProtocolHeader } from '#contracts/wire/sidecar'

/** The command that starts the suite's worker. A stand-in for a remote substrate runs it with the given environment. */
export const suiteWorker: readonly string[] = [
  process.execPath,
  fileURLToPath(new URL('./sandbox-worker.ts', import.meta.url)),
]

/** An order of the suite with fresh names, overridden by `fields`. */
export function testOrder(runnerUrl: string, fields: Partial<LaunchOrder> = {}): LaunchOrder {
  const sessionId = fields.sessionId ?? `sess-00000000-${randomBytes(4).toString('hex')}`
  return {
    name: `ao-${randomBytes(8).toString('hex')}`,
    owner: 'suite000',
    tenantId: 'default',
    sessionId,
    resources: {},
    runnerUrl,
    command: suiteWorker,
    ...fields,
    env: {
      [workerVariables.token]: randomBytes(16).toString('hex'),
      [workerVariables.sessionId]: sessionId,
      ...fields.env,
    },
  }
}

/** Boots `plugins` in a test kernel, for every tenant unless they say otherwise, and returns its provider `name`. Undefined when it is not offered. */
export const sandboxProviderOf = async (
  t: Pick<TestContext, 'after'>,
  name: string,
  plugins: readonly (Plugin | Entry)[],
): Promise<SandboxProvider | undefined> => {
  const entries = plugins.map((one) => {
    const { plugin, ...entry } = 'plugin' in one ? one : { plugin: one, name: one.name, config: {} }
    return { ...entry, plugin, config: { tenants: '*', ...(entry.config as object) } }
  })
  return (await entriesOf(t, SandboxProviders, entries)).get(name)
}

export interface Started {
  readonly order: LaunchOrder
  readonly sandboxId: string
  readonly session: SuiteSession
}

/** A provider, and the suite's runner that its workers poll. */
export interface Launches {
  readonly provider: SandboxProvider
  order(fields?: Partial<LaunchOrder>): LaunchOrder
  session(sessionId: string): SuiteSession
  launch(fields?: Partial<LaunchOrder>): Promise<Started>
  /** Launches a sandbox and waits for the first poll of its worker. */
  start(fields?: Partial<LaunchOrder>): Promise<Started>
  becomes(sandboxId: string, state: SandboxState): Promise<void>
  /** Destroys everything that was launched. */
  end(): Promise<void>
}

/** Launches of a provider. They end after the test, unless `end: 'fake'` says that a fake service ends them. */
export async function openLaunches(
  t: Pick<TestContext, 'after'>,
  provider: SandboxProvider,
  laid: Partial<LaunchOrder> = {},
  { end = 'test' }: { readonly end?: 'test' | 'fake' } = {},
): Promise<Launches> {
  const runner = await startSuiteRunner(t)
  const launched = new Set<string>()
  const launches: Launches = {
    provider,
    session: (id) => runner.session(id),
    order: (fields) => testOrder(runner.url, { ...laid, ...fields, env: { ...laid.env, ...fields?.env } }),
    async launch(fields) {
      const order = launches.order(fields)
      const { sandboxId } = await provider.launch(order, new AbortController().signal)
      launched.add(sandboxId)
      return { order, sandboxId, session: runner.session(order.sessionId) }
    },
    async start(fields) {
      const order = launches.order(fields)
      const first = runner.session(order.sessionId).polled(({ token }) => token === order.env[workerVariables.token])
      const started = await launches.launch(order)
      await first
      return started
    },
    becomes: (id, state) => until(async () => (await provider.status(id)) === state, `${id} ${state}`),
    async end() {
      for (const id of launched) {
        // A sandbox that the test itself has ended is not destroyed again afterwards, when its provider may be closed.
        launched.delete(id)
        await provider.destroy(id)
      }
    },
  }
  if (end === 'test') t.after(() => launches.end())
  return launches
}

/** Waits until `holds` is true, limited by its attempts and by the test's own timeout. */
export async function until(holds: () => Promise<boolean>, what: string): Promise<void> {
  for (let attempt = 0; !(await holds()); attempt++) {
    assert.ok(attempt < 2_000, `never ${what}`)
    await wait(10)
  }
}

/** Processes of this machine whose environment or command line holds `marker`, each as its id and its command. */
export function processesWith(marker: string): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .flatMap((pid) => {
      const command = read(`/proc/${pid}/cmdline`)
      const found = command.includes(marker) || read(`/proc/${pid}/environ`).includes(marker)
      return found ? [`${pid} ${command.replaceAll('\0', ' ').slice(0, 200)}`] : []
    })
}

/** Empty when the process has ended or belongs to another user. */
function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

/** A poll as it arrived. */
export interface Poll {
  readonly token: string
  readonly protocol: string | string[] | undefined
  /** True for a poll from a copy of the worker that `fork` started. */
  readonly copy: boolean
}

/** One session as the suite's runner sees it. */
export interface SuiteSession {
  readonly polls: readonly Poll[]
  /** Resolves when a matching poll has arrived after this call. */
  polled(fits?: (poll: Poll) => boolean, times?: number): Promise<void>
  /** Has the worker execute one of its tools. */
  call(name: string, input?: Readonly<Record<string, unknown>>): Promise<unknown>
  /** Queues `shutdown` for the worker's next poll. */
  shutdown(): void
}

/** The runner's end of the sandbox suite: a real HTTP server with the part of the worker's wire that the suite needs. */
export interface SuiteRunner {
  readonly url: string
  session(sessionId: string): SuiteSession
}

/** Milliseconds that a poll without a command is held. Workers then poll some 30 times a second. */
const holdMs = 10

export async function startSuiteRunner(t: Pick<TestContext, 'after'>): Promise<SuiteRunner> {
  const sessions = new Map<string, ReturnType<typeof createSession>>()
  const sessionOf = (id: string): ReturnType<typeof createSession> => {
    const known = sessions.get(id) ?? createSession()
    sessions.set(id, known)
    return known
  }
  const server = createServer((request, response) => {
    const url = new URL(request.url!, 'http://runner')
    const [, sessionId, rest] = /^\/runner\/worker\/([^/]+)\/(.+)$/.exec(url.pathname) ?? []
    if (sessionId === undefined) return void response.writeHead(404).end()
    const answered = sessionOf(decodeURIComponent(sessionId)).answer(request, response, rest!, url.searchParams)
    // The worker was killed in the middle of its request.
    answered.catch(() => response.destroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, session: sessionOf }
}

function createSession() {
  const polls: Poll[] = []
  /** Commands that no worker has answered yet. A new worker must not repeat what another one has done. */
  const commands = new Map<number, { id: number; kind: string }>()
  let lastId = 0
  const answers = new Map<string, (content: unknown) => void>()
  const watchers = new Set<(poll: Poll) => void>()
  const push = (kind: string, fields: object = {}): number => {
    commands.set(++lastId, { id: lastId, kind, ...fields })
    return lastId
  }
  return {
    polls,
    shutdown: () => void push('shutdown'),
    polled: (fits: (poll: Poll) => boolean = () => true, times = 1) =>
      new Promise<void>((resolve) => {
        let left = times
        const watch = (poll: Poll): void => {
          if (!fits(poll) || --left > 0) return
          watchers.delete(watch)
          resolve()
        }
        watchers.add(watch)
      }),
    call(name: string, input: Readonly<Record<string, unknown>> = {}) {
      const callId = `call-${lastId + 1}`
      const id = push('tool', { callId, name, input, timeoutMs: 30_000 })
      return new Promise((resolve) => {
        answers.set(callId, (content) => {
          commands.delete(id)
          resolve(content)
        })
      })
    },
    async answer(request: IncomingMessage, response: ServerResponse, path: string, query: URLSearchParams) {
      let body = ''
      for await (const chunk of request.setEncoding('utf8')) body += chunk as string
      if (path === 'poll' && request.method === 'GET') {
        const token = /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1] ?? ''
        const poll = { token, protocol: request.headers[workerProtocolHeader], copy: query.has('copy') }
        polls.push(poll)
        for (const watch of watchers) watch(poll)
        const after = Number(query.get('after') ?? Number.POSITIVE_INFINITY)
        const news = [...commands.values()].filter(({ id }) => id > after)
        for (const { id, kind } of news) if (kind === 'shutdown') commands.delete(id)
        if (news.length === 0) return void setTimeout(() => response.writeHead(204).end(), holdMs)
        response.setHeader('content-type', 'application/json').end(JSON.stringify({ commands: news }))
      } else if (path.startsWith('tools/') && request.method === 'PUT') {
        const { content } = JSON.parse(body) as { content: string }
        response.writeHead(204).end()
        answers.get(decodeURIComponent(path.slice('tools/'.length)))?.(JSON.parse(content))
      } else response.writeHead(404).end()
    },
  }
}
