import { readFile } from 'node:fs/promises'
import { callbackify } from 'node:util'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { Agent, buildConnector, type Dispatcher } from 'undici'
import { askJson, askPatiently, type JsonAnswer } from '#kit'

const requestMs = 15_000
/** How long one call goes on with what may pass. */
const patienceMs = 30_000
const pageSize = 250
/** Named in what the cluster keeps of a change, and the owner of what is applied. */
const manager = 'agent-orc'

export const apiVersion = 'agents.x-k8s.io/v1beta1'

const Metadata = Type.Object({
  name: Type.String(),
  uid: Type.String(),
  generation: Type.Optional(Type.Integer()),
  deletionTimestamp: Type.Optional(Type.String()),
  labels: Type.Optional(Type.Record(Type.String(), Type.String())),
})

/** A Sandbox of agent-sandbox, as far as it is read here. */
export const SandboxObject = Type.Object({
  metadata: Metadata,
  spec: Type.Object({ operatingMode: Type.Optional(Type.String()) }),
  status: Type.Optional(
    Type.Object({
      conditions: Type.Optional(
        Type.Array(
          Type.Object({
            type: Type.String(),
            status: Type.String(),
            observedGeneration: Type.Optional(Type.Integer()),
          }),
        ),
      ),
    }),
  ),
})
export type SandboxObject = Static<typeof SandboxObject>

const SandboxList = Type.Object({
  metadata: Type.Object({ continue: Type.Optional(Type.String()) }),
  items: Type.Array(SandboxObject),
})

interface SandboxChange {
  readonly operatingMode?: 'Running' | 'Suspended'
  readonly shutdownTime?: string
}

/** The API server of Kubernetes, as far as it is used here. Rejects with `KubernetesError` and `NoAnswer`. */
export interface KubernetesApi {
  create(sandbox: object): Promise<SandboxObject>
  get(name: string, signal?: AbortSignal): Promise<SandboxObject>
  /** Those that all of these labels select. */
  list(labels: Readonly<Record<string, string>>): Promise<SandboxObject[]>
  patch(name: string, spec: SandboxChange): Promise<SandboxObject>
  /** Resolves when its end has begun; it is there until its pod and its volume are gone. */
  delete(name: string): Promise<void>
  /** Creates the secret, or replaces everything of ours in it. */
  applySecret(name: string, secret: object): Promise<void>
}

interface KubernetesApiOptions {
  readonly cluster: ClusterAccess
  readonly apiUrl: string
  readonly namespace: string
}

interface Call {
  readonly what: string
  readonly body?: unknown
  readonly type?: string
  readonly query?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal | undefined
}

export function createKubernetesApi({ cluster, apiUrl, namespace }: KubernetesApiOptions): KubernetesApi {
  const { origin, pathname } = new URL(apiUrl)
  const prefix = pathname.replace(/\/+$/, '')
  const inNamespace = `/namespaces/${encodeURIComponent(namespace)}`
  const sandboxes = `/apis/${apiVersion}${inNamespace}/sandboxes`
  const one = (name: string): string => `${sandboxes}/${encodeURIComponent(name)}`

  // Every call may be made twice: what is created has a name of its own, and everything else sets what it sets.
  const call = async (
    method: 'GET' | 'POST' | 'PATCH' | 'DELETE',
    path: string,
    options: Call,
  ): Promise<JsonAnswer> => {
    const { what, body, type, query, signal } = options
    const ask = async (): Promise<JsonAnswer> =>
      askJson(cluster.dispatcher, {
        method,
        origin,
        path: `${prefix}${path}${query ? `?${new URLSearchParams(query).toString()}` : ''}`,
        headers: {
          authorization: `Bearer ${await cluster.token()}`,
          ...(type === undefined ? {} : { 'content-type': type }),
        },
        body,
        timeoutMs: requestMs,
        signal,
      })
    const again = async (): Promise<JsonAnswer> => {
      const answer = await ask()
      // The token was replaced while the request was on its way; the object was changed by its controller.
      return answer.status === 401 || isLostRace(answer) ? ask() : answer
    }
    const answer = await askPatiently(again, { repeatable: true, withinMs: patienceMs, signal })
    if (answer.status >= 200 && answer.status < 300) return answer
    throw new KubernetesError(answer, what)
  }

  return {
    create: async (sandbox) =>
      read(
        await call('POST', sandboxes, { what: 'create a sandbox', body: sandbox, query: { fieldManager: manager } }),
      ),
    get: async (name, signal) => read(await call('GET', one(name), { what: 'show a sandbox', signal })),
    async list(labels) {
      const found: SandboxObject[] = []
      const labelSelector = Object.entries(labels)
        .map(([name, value]) => `${name}=${value}`)
        .join(',')
      let next: string | undefined
      do {
        const query = { labelSelector, limit: String(pageSize), ...(next === undefined ? {} : { continue: next }) }
        const page = read(await call('GET', sandboxes, { what: 'list sandboxes', query }), SandboxList)
        found.push(...page.items)
        next = page.metadata.continue || undefined
      } while (next !== undefined)
      return found
    },
    patch: async (name, spec) =>
      read(
        await call('PATCH', one(name), {
          what: 'change a sandbox',
          body: { spec },
          type: 'application/merge-patch+json',
          query: { fieldManager: manager },
        }),
      ),
    async delete(name) {
      await call('DELETE', one(name), { what: 'delete a sandbox', query: { propagationPolicy: 'Foreground' } })
    },
    async applySecret(name, secret) {
      await call('PATCH', `/api/v1${inNamespace}/secrets/${encodeURIComponent(name)}`, {
        what: 'write the secret of a sandbox',
        body: secret,
        type: 'application/apply-patch+yaml',
        query: { fieldManager: manager, force: 'true' },
      })
    },
  }
}

const isLostRace = ({ status, body }: JsonAnswer): boolean =>
  status === 409 && (body as { reason?: unknown } | undefined)?.reason === 'Conflict'

function read(answer: JsonAnswer): SandboxObject
function read<T extends TSchema>(answer: JsonAnswer, schema: T): Static<T>
function read(answer: JsonAnswer, schema: TSchema = SandboxObject): unknown {
  if (Value.Check(schema, answer.body)) return answer.body
  throw new Error('Kubernetes answered with something else than its documentation says')
}

interface Status {
  readonly reason?: unknown
  readonly message?: unknown
}

/** The API server answered, and refused. Its words are for the log: they never leave the runner as they are. */
export class KubernetesError extends Error {
  readonly status: number
  readonly reason: string | undefined
  constructor({ status, body }: JsonAnswer, what: string) {
    const { reason, message } = (body ?? {}) as Status
    super(`Kubernetes refused to ${what}: ${status}${typeof message === 'string' ? ` ${message.slice(0, 500)}` : ''}`)
    this.name = 'KubernetesError'
    this.status = status
    this.reason = typeof reason === 'string' ? reason : undefined
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof KubernetesError && error.status === 404
export const isThere = (error: unknown): boolean => error instanceof KubernetesError && error.reason === 'AlreadyExists'

interface ClusterAccess {
  readonly dispatcher: Dispatcher
  /** For the header of one request. */
  token(): Promise<string>
}

interface ClusterOptions {
  /** Instead of the file. */
  readonly token?: string | undefined
  readonly tokenFile: string
  /** The system's authorities where this file is not there. */
  readonly caFile: string
}

/**
 * The way to an API server. Kubernetes replaces the token of a pod about every hour, and now and then the authority: both are
 * read when they are needed.
 */
export function createClusterAccess({ token, tokenFile, caFile }: ClusterOptions): ClusterAccess {
  const connectorOf = async (): Promise<buildConnector.connector> => {
    const ca = await readFile(caFile, 'utf8').catch((error: { code?: unknown }) => {
      if (error.code === 'ENOENT') return undefined
      throw error
    })
    return buildConnector(ca === undefined ? {} : { ca })
  }
  const withConnector = callbackify(connectorOf)
  const connect: buildConnector.connector = (target, done) =>
    withConnector((error, connector) => (error ? done(error, null) : connector(target, done)))
  return {
    dispatcher: new Agent({ connect }),
    token: async () => token ?? (await readFile(tokenFile, 'utf8')).trim(),
  }
}
