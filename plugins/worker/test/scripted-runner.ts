import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { linesOf } from '#kernel'
import type { RunEvent } from '#contracts/run-event'
import type { ToolResult } from '#contracts/tools'
import type { WorkerCommand } from '#contracts/wire/worker'

type Distributed<T> = T extends unknown ? Omit<T, 'id'> : never
/** A command without its number. */
export type Order = Distributed<WorkerCommand>

/** A request of the worker. */
export interface Asked {
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  readonly headers: IncomingMessage['headers']
}

export interface StoredState {
  readonly bytes: Buffer
  readonly headers: Readonly<Record<string, string>>
}

type Handler = (request: IncomingMessage, response: ServerResponse) => void | Promise<void>

/** The runner's end of the wire, controlled by the test: commands wait in a list, and everything that a worker sends is recorded. */
export interface ScriptedRunner {
  readonly url: string
  readonly asked: readonly Asked[]
  readonly polls: readonly Asked[]
  /** Adds a command for a session. It is repeated until a poll acknowledges it with `after`. */
  order(sessionId: string, command: Order): number
  /** The next poll is answered with this token. */
  renew(token: string): void
  /** The states that were uploaded, by session; undefined for one that was deleted. */
  readonly states: Map<string, StoredState | undefined>
  readonly results: Map<string, ToolResult>
  /** The events of a run, when its upload has ended. */
  run(runId: string): Promise<RunEvent[]>
  /** Answers requests whose method and path match, before anything else does; returning false passes them on. */
  intercept(handler: ((request: IncomingMessage, response: ServerResponse) => boolean) | undefined): void
  /** Resolves once the condition holds; it is checked after every request. */
  until<T>(condition: () => T | undefined | false): Promise<T>
  stop(): Promise<void>
  /** Restarts on the same port with the same data. */
  restart(): Promise<void>
}

export async function startScriptedRunner(t: Pick<TestContext, 'after'>): Promise<ScriptedRunner> {
  const asked: Asked[] = []
  const queues = new Map<string, WorkerCommand[]>()
  const states = new Map<string, StoredState | undefined>()
  const results = new Map<string, ToolResult>()
  const runs = new Map<string, ReturnType<typeof Promise.withResolvers<RunEvent[]>>>()
  const watchers = new Set<() => void>()
  const waiting = new Set<() => void>()
  let token: string | undefined
  let intercept: ((request: IncomingMessage, response: ServerResponse) => boolean) | undefined
  let count = 0

  const look = (): void => {
    for (const watcher of watchers) watcher()
  }
  const runOf = (runId: string) => {
    const known = runs.get(runId) ?? Promise.withResolvers<RunEvent[]>()
    known.promise.catch(() => {})
    runs.set(runId, known)
    return known
  }
  const poll = async (sessionId: string, query: URLSearchParams, response: ServerResponse): Promise<void> => {
    const after = Number(query.get('after'))
    // Commands that were acknowledged are not given to a later process of the session either.
    queues.set(
      sessionId,
      (queues.get(sessionId) ?? []).filter(({ id }) => id > after),
    )
    const due = (): WorkerCommand[] => queues.get(sessionId)!
    const until = Date.now() + Number(query.get('wait'))
    while (due().length === 0 && token === undefined && Date.now() < until && !response.destroyed) {
      await new Promise<void>((resolve) => {
        waiting.add(resolve)
        response.once('close', resolve)
        setTimeout(resolve, until - Date.now()).unref()
      })
    }
    if (response.destroyed) return
    if (due().length === 0 && token === undefined) return void response.writeHead(204).end()
    const body = JSON.stringify({ commands: due(), ...(token === undefined ? {} : { token }) })
    token = undefined
    response.writeHead(200, { 'content-type': 'application/json' }).end(body)
  }
  const routes: Readonly<Record<string, (sessionId: string, rest: string, query: URLSearchParams) => Handler>> = {
    'GET poll': (sessionId, _rest, query) => (_request, response) => poll(sessionId, query, response),
    'POST events': (_sessionId, _rest, query) => async (request, response) => {
      const run = runOf(query.get('runId')!)
      try {
        const body = await bodyOf(request)
        run.resolve([...linesOf(body)].map((line) => JSON.parse(line.toString()) as RunEvent))
        response.writeHead(204).end()
      } catch (error) {
        run.reject(error)
      }
    },
    'GET state': (sessionId) => (_request, response) => {
      const state = states.get(sessionId)
      if (state) response.writeHead(200, state.headers).end(state.bytes)
      else response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":"not_found"}')
    },
    'PUT state': (sessionId) => async (request, response) => {
      const bytes = await bodyOf(request)
      const kept = ['content-type', 'x-agent-orc-state-rev', 'x-runtime-session-id']
      const headers = Object.fromEntries(
        kept.flatMap((name) => (request.headers[name] ? [[name, request.headers[name]]] : [])),
      )
      states.set(sessionId, { bytes, headers: headers as Record<string, string> })
      response.writeHead(204).end()
    },
    'DELETE state': (sessionId) => (_request, response) => {
      states.set(sessionId, undefined)
      response.writeHead(204).end()
    },
    'PUT tools': (_sessionId, callId) => async (request, response) => {
      results.set(callId, JSON.parse((await bodyOf(request)).toString()) as ToolResult)
      response.writeHead(204).end()
    },
  }
  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const url = new URL(request.url!, 'http://runner')
    asked.push({ method: request.method!, path: url.pathname, query: url.searchParams, headers: request.headers })
    look()
    if (intercept?.(request, response)) return
    const [sessionId = '', kind = '', ...rest] = url.pathname.replace('/runner/worker/', '').split('/')
    const handler = routes[`${request.method} ${kind}`]?.(
      sessionId,
      decodeURIComponent(rest.join('/')),
      url.searchParams,
    )
    if (handler) await handler(request, response)
    else response.writeHead(404).end()
    look()
  }

  let port = 0
  let server: Server
  const start = async (): Promise<void> => {
    server = createServer((request, response) => {
      serve(request, response).catch(() => response.destroy())
    })
    await once(server.listen(port, '127.0.0.1'), 'listening')
    port = (server.address() as AddressInfo).port
  }
  const stop = async (): Promise<void> => {
    const closed = new Promise((resolve) => server.close(resolve))
    server.closeAllConnections()
    await closed
  }
  await start()
  t.after(stop)
  return {
    url: `http://127.0.0.1:${port}`,
    asked,
    get polls() {
      return asked.filter(({ path }) => path.endsWith('/poll'))
    },
    order(sessionId, command) {
      const id = ++count
      queues.set(sessionId, [...(queues.get(sessionId) ?? []), { id, ...command } as WorkerCommand])
      for (const wake of waiting) wake()
      return id
    },
    renew(next) {
      token = next
      for (const wake of waiting) wake()
    },
    states,
    results,
    run: (runId) => runOf(runId).promise,
    intercept(handler) {
      intercept = handler
    },
    until(condition) {
      return new Promise((resolve) => {
        const watcher = (): void => {
          const value = condition()
          if (!value) return
          watchers.delete(watcher)
          resolve(value as never)
        }
        watchers.add(watcher)
        watcher()
      })
    },
    stop,
    restart: start,
  }
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  return Buffer.concat(parts)
}
