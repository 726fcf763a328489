import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdir, mkdtemp, readdir, readFile, readlink, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, sep } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { callIdMeta } from '#contracts/tools'

/** One request as it arrived. */
export interface ApiRequest {
  readonly method: string
  /** Path and query. */
  readonly url: string
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
}

export interface ApiAnswer {
  readonly status: number
  /** Sent as JSON; a text is sent unchanged. */
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  /** Sent instead of a body. */
  readonly stream?: (response: ServerResponse) => void
}

/** How a request fails. */
export type ApiFault =
  /** The request is carried out, and the connection is cut before the answer. */
  | 'lose_answer'
  /** The connection is cut before the request is carried out. */
  | 'lose_request'
  /** This answer is sent, and the request is not carried out. */
  | ApiAnswer

/** A stand-in for another company's HTTP API, which fails on demand. */
export interface StandInApi {
  readonly url: string
  readonly requests: readonly ApiRequest[]
  /** Gives this fault to the next `times` requests whose `METHOD /path` begins with `start`. */
  plan(start: string, fault: ApiFault, times?: number): void
}

/** A real HTTP server on a free port of 127.0.0.1, closed after the test. */
export async function startStandInApi(
  t: Pick<TestContext, 'after'>,
  serve: (request: ApiRequest) => Promise<ApiAnswer> | ApiAnswer,
): Promise<StandInApi> {
  const requests: ApiRequest[] = []
  const planned: { readonly start: string; readonly fault: ApiFault; left: number }[] = []

  const take = async (incoming: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method = '', url = '', headers } = incoming
    const request = { method, url, headers, body: Buffer.concat(await incoming.toArray()) }
    requests.push(request)
    const due = planned.find(({ start, left }) => left > 0 && `${method} ${url}`.startsWith(start))
    if (due) due.left--
    if (due?.fault === 'lose_request') return void incoming.socket.destroy()
    const { status, body, headers: more, stream } = typeof due?.fault === 'object' ? due.fault : await serve(request)
    if (due?.fault === 'lose_answer') return void incoming.socket.destroy()
    response.writeHead(status, { 'content-type': 'application/json', ...more })
    if (stream) stream(response)
    else response.end(typeof body === 'string' || body === undefined ? body : JSON.stringify(body))
  }
  const server = createServer((incoming, response) => {
    take(incoming, response).catch((error: unknown) => response.destroy(error as Error))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    plan: (start, fault, times = 1) => void planned.push({ start, fault, left: times }),
  }
}

interface MachineCommand {
  readonly command: readonly string[]
  /** The complete environment. Paths in `mounts` are mapped to this machine. */
  readonly env: Readonly<Record<string, string>>
}

/**
 * A stand-in for the machine that a remote substrate would start: processes of this machine with their own folder. It needs Linux, because it finds
 * its processes by their working folder in /proc.
 */
export interface StandInMachine {
  readonly folder: string
  /** The location of the machine's path on this machine. */
  locate(path: string): string
  start(command: MachineCommand): ChildProcess
  /** The processes that run in it, whoever started them. */
  pids(): Promise<number[]>
  /** Stops all processes, and resolves when none runs. */
  freeze(): Promise<void>
  thaw(): Promise<void>
  /** Asks all running processes to end. */
  terminate(): Promise<void>
  /** Ends all running processes. Files stay. */
  halt(): Promise<void>
  destroy(): Promise<void>
}

/** `mounts`: paths of the machine that are folders here, e.g. `/workspace`. */
export async function createStandInMachine(mounts: readonly string[]): Promise<StandInMachine> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), 'stand-in-machine-')))
  for (const mount of mounts) await mkdir(join(folder, mount), { recursive: true })
  const locate = (path: string): string =>
    mounts.some((mount) => path === mount || path.startsWith(`${mount}/`)) ? join(folder, path) : path

  const pids = async (): Promise<number[]> => {
    const found: number[] = []
    for (const name of await readdir('/proc')) {
      if (!/^\d+$/.test(name)) continue
      const cwd = await readlink(`/proc/${name}/cwd`).catch(() => '')
      if (`${cwd}${sep}`.startsWith(folder + sep) && (await stateOf(Number(name))) !== 'Z') found.push(Number(name))
    }
    return found
  }
  /** Signals repeatedly, because a process may have just started another one. */
  const signalUntil = async (signal: NodeJS.Signals, done: (states: (string | undefined)[]) => boolean) => {
    for (;;) {
      const running = await pids()
      if (done(await Promise.all(running.map(stateOf)))) return
      for (const pid of running) send(pid, signal)
      await wait(5)
    }
  }
  const machine: StandInMachine = {
    folder,
    locate,
    start({ command: [file = '', ...args], env }) {
      const inside = Object.entries(env).map(([name, value]) => [name, locate(value)] as const)
      return spawn(file, args, { cwd: folder, env: Object.fromEntries(inside), stdio: ['ignore', 'pipe', 'pipe'] })
    },
    pids,
    freeze: () => signalUntil('SIGSTOP', (states) => states.every((state) => state === 'T')),
    async thaw() {
      for (const pid of await pids()) send(pid, 'SIGCONT')
    },
    async terminate() {
      for (const pid of await pids()) send(pid, 'SIGTERM')
    },
    halt: () => signalUntil('SIGKILL', (states) => states.length === 0),
    async destroy() {
      await machine.halt()
      await rm(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
  return machine
}

/** The state letter of proc(5); undefined when the process is gone. */
async function stateOf(pid: number): Promise<string | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  return stat?.slice(stat.lastIndexOf(')') + 2)[0]
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // It ended meanwhile.
  }
}

export interface ToolServer {
  /** The value for an envelope's `sessionMcpUrl`. */
  readonly url: string
  /** Tool calls in the order they arrived. */
  readonly calls: { readonly name: string; readonly arguments: unknown; readonly callId?: unknown }[]
  /** Authorization headers, one per request. */
  readonly tokens: (string | undefined)[]
  /** How often the catalogue was listed. */
  readonly lists: () => number
}

export type StandInTool = (input: Record<string, unknown>) => Promise<{ text: string; isError?: boolean }>

/** A real MCP server as a runner mounts it for a session: stateless, a new server and transport for each request. */
export async function startToolServer(
  t: { after(fn: () => Promise<void>): void },
  tools: Record<string, StandInTool>,
  host = '127.0.0.1',
): Promise<ToolServer> {
  const calls: ToolServer['calls'] = []
  const tokens: ToolServer['tokens'] = []
  let lists = 0
  const http = createServer(async (request, response) => {
    tokens.push(request.headers.authorization)
    const server = new Server({ name: 'test', version: '1' }, { capabilities: { tools: {} } })
    server.setRequestHandler(ListToolsRequestSchema, async () => {
      lists++
      return {
        tools: Object.keys(tools).map((name) => ({
          name,
          description: name,
          inputSchema: { type: 'object' as const },
        })),
      }
    })
    server.setRequestHandler(CallToolRequestSchema, async ({ params }) => {
      calls.push({ name: params.name, arguments: params.arguments, callId: params._meta?.[callIdMeta] })
      const { text, isError } = await tools[params.name]!(params.arguments ?? {})
      return { content: [{ type: 'text', text }], ...(isError ? { isError } : {}) }
    })
    const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true })
    response.once('close', () => void server.close())
    await server.connect(transport as never)
    await transport.handleRequest(request, response)
  })
  await new Promise<void>((resolve) => http.listen(0, host, resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return { url: `http://${host}:${(http.address() as AddressInfo).port}/mcp`, calls, tokens, lists: () => lists }
}
