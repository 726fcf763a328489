import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { workerProtocolHeader } from '#contracts/wire/sidecar'

/** A poll as it arrived. */
export interface Poll {
  readonly token: string
  readonly protocol: string | string[] | undefined
  /** From a copy of the worker that `fork` started. */
  readonly copy: boolean
}

/** One session as the suite's runner sees it. */
export interface SuiteSession {
  readonly polls: readonly Poll[]
  /** Resolves when a poll that fits has arrived since now. */
  polled(fits?: (poll: Poll) => boolean, times?: number): Promise<void>
  /** Has the worker execute one of its tools. */
  call(name: string, input?: Readonly<Record<string, unknown>>): Promise<unknown>
  /** Queues `shutdown` for the worker's next poll. */
  shutdown(): void
}

/** The runner's end of the sandbox suite: a real HTTP server that speaks as much of the worker's wire as the suite needs. */
export interface SuiteRunner {
  readonly url: string
  session(sessionId: string): SuiteSession
}

/** How long a poll without a command is held: workers then poll some 30 times a second. */
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
  /** Commands that no worker has answered yet: a new worker must not repeat what another one has done. */
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
