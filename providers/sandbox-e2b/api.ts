import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Dispatcher } from 'undici'
import { askJson, askPatiently, type JsonAnswer } from '#kit'

/** Creating and resuming wait for a machine: a minute is what E2B's own clients wait. */
const requestMs = 60_000
/** How long one call goes on with what may pass. */
const patienceMs = 30_000
/** The longest page that E2B gives out. */
const pageSize = 100

/** What E2B answers with when a sandbox begins or goes on. */
const StartedSandbox = Type.Object({
  sandboxID: Type.String({ minLength: 1, maxLength: 128 }),
  envdAccessToken: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  domain: Type.Optional(Type.Union([Type.String(), Type.Null()])),
})
export type StartedSandbox = Static<typeof StartedSandbox>

const SandboxDetail = Type.Object({
  state: Type.String(),
  cpuCount: Type.Number(),
  memoryMB: Type.Number(),
  diskSizeMB: Type.Number(),
})
export type SandboxDetail = Static<typeof SandboxDetail>

const SandboxPage = Type.Array(Type.Object({ sandboxID: Type.String() }))

export interface NewSandbox {
  readonly templateID: string
  /** Seconds. */
  readonly timeout: number
  readonly autoPause: true
  readonly secure: true
  readonly metadata: Readonly<Record<string, string>>
  readonly network: { readonly allowPublicTraffic: false; readonly allowOut?: string[]; readonly denyOut?: string[] }
}

/** E2B's REST API, as far as it is used here. Rejects with `E2bError` for what it refuses and `NoAnswer` when it is away. */
export interface E2bApi {
  /** One attempt, but for what E2B certainly refused to begin: what is lost on the way may have been done. */
  create(sandbox: NewSandbox): Promise<StartedSandbox>
  detail(sandboxId: string, signal?: AbortSignal): Promise<SandboxDetail>
  /** Ids of sandboxes, running and paused, that have all of these labels. */
  find(metadata: Readonly<Record<string, string>>): Promise<string[]>
  /** Wakes a paused sandbox; of a running one it extends the time. */
  connect(sandboxId: string, timeout: number): Promise<StartedSandbox>
  setTimeout(sandboxId: string, timeout: number): Promise<void>
  pause(sandboxId: string): Promise<void>
  kill(sandboxId: string): Promise<void>
}

interface E2bAccess {
  readonly dispatcher: Dispatcher
  readonly apiUrl: string
  readonly apiKey: string
}

export function createE2bApi({ dispatcher, apiUrl, apiKey }: E2bAccess): E2bApi {
  const { origin, pathname } = new URL(apiUrl)
  const prefix = pathname.replace(/\/+$/, '')
  interface Call {
    readonly body?: unknown
    readonly repeatable?: boolean
    readonly signal?: AbortSignal | undefined
  }
  const call = async (method: 'GET' | 'POST' | 'DELETE', path: string, options: Call = {}): Promise<JsonAnswer> => {
    const { body, repeatable = true, signal } = options
    const request = { method, origin, path: prefix + path, headers: { 'x-api-key': apiKey }, body, signal }
    const ask = (): Promise<JsonAnswer> => askJson(dispatcher, { ...request, timeoutMs: requestMs })
    const answer = await askPatiently(ask, { repeatable, withinMs: patienceMs, signal })
    if (answer.status >= 200 && answer.status < 300) return answer
    throw new E2bError(answer)
  }
  const of = (sandboxId: string): string => `/sandboxes/${encodeURIComponent(sandboxId)}`
  return {
    create: async (sandbox) =>
      read(StartedSandbox, await call('POST', '/sandboxes', { body: sandbox, repeatable: false })),
    detail: async (sandboxId, signal) => read(SandboxDetail, await call('GET', of(sandboxId), { signal })),
    async find(metadata) {
      const found: string[] = []
      let next: string | undefined
      do {
        const query = new URLSearchParams({
          metadata: filterOf(metadata),
          state: 'running,paused',
          limit: String(pageSize),
          ...(next === undefined ? {} : { nextToken: next }),
        })
        const answer = await call('GET', `/v2/sandboxes?${query.toString()}`)
        found.push(...read(SandboxPage, answer).map(({ sandboxID }) => sandboxID))
        const token = answer.headers['x-next-token']
        next = typeof token === 'string' && token !== '' && token !== next ? token : undefined
      } while (next !== undefined)
      return found
    },
    connect: async (sandboxId, timeout) =>
      read(StartedSandbox, await call('POST', `${of(sandboxId)}/connect`, { body: { timeout } })),
    async setTimeout(sandboxId, timeout) {
      await call('POST', `${of(sandboxId)}/timeout`, { body: { timeout } })
    },
    async pause(sandboxId) {
      await call('POST', `${of(sandboxId)}/pause`)
    },
    async kill(sandboxId) {
      await call('DELETE', of(sandboxId))
    },
  }
}

/** Names and values are encoded once for the filter, and the filter once more as a part of the URL. */
const filterOf = (metadata: Readonly<Record<string, string>>): string =>
  Object.entries(metadata)
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
    .join('&')

function read<T extends TSchema>(schema: T, answer: JsonAnswer): Static<T> {
  if (Value.Check(schema, answer.body)) return answer.body
  throw new E2bError(answer, 'E2B answered with something else than its documentation says.')
}

interface Problem {
  readonly code?: unknown
  readonly message?: unknown
}

/** E2B answered, and refused. Its words are for the log: they never leave the runner as they are. */
export class E2bError extends Error {
  readonly status: number
  /** What E2B itself says, unlike a proxy in front of it. */
  readonly itsOwn: boolean
  constructor({ status, body }: JsonAnswer, message?: string) {
    const { code, message: said } = (body ?? {}) as Problem
    super(message ?? `E2B answered ${status}${typeof said === 'string' ? `: ${said.slice(0, 500)}` : ''}`)
    this.name = 'E2bError'
    this.status = status
    this.itsOwn = typeof code === 'number'
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof E2bError && error.status === 404
export const isConflict = (error: unknown): boolean => error instanceof E2bError && error.status === 409
