import { readFile } from 'node:fs/promises'
import { callbackify } from 'node:util'
import { Agent, buildConnector, type Dispatcher } from 'undici'
import { askJson, askPatiently, type JsonAnswer } from '#kit'

const requestMs = 15_000
/** Milliseconds for which a temporary failure of one call is retried. */
const patienceMs = 30_000
const pageSize = '250'
/** The field manager under which this server changes objects in the cluster. */
const fieldManager = 'agent-orc'

export const apiVersion = 'agents.x-k8s.io/v1beta1'

/** A Sandbox object of agent-sandbox, reduced to the fields that are read here. */
export interface SandboxObject {
  readonly metadata: {
    readonly name: string
    readonly uid: string
    readonly generation?: number
    readonly deletionTimestamp?: string
    readonly labels?: Readonly<Record<string, string>>
  }
  readonly spec: { readonly operatingMode?: string }
  readonly status?: {
    readonly conditions?: readonly {
      readonly type: string
      readonly status: string
      readonly observedGeneration?: number
    }[]
  }
}

interface Call {
  readonly body?: unknown
  readonly type?: string
  readonly query?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal | undefined
}

/** The part of the Kubernetes API that is used here. Rejects with `KubernetesError` and `NoAnswer`. */
export class KubernetesApi {
  readonly #cluster: ClusterAccess
  readonly #origin: string
  readonly #sandboxes: string
  readonly #secrets: string

  constructor(cluster: ClusterAccess, apiUrl: string, namespace: string) {
    const { origin, pathname } = new URL(apiUrl)
    const prefix = pathname.replace(/\/+$/, '')
    const inNamespace = `namespaces/${encodeURIComponent(namespace)}`
    this.#cluster = cluster
    this.#origin = origin
    this.#sandboxes = `${prefix}/apis/${apiVersion}/${inNamespace}/sandboxes`
    this.#secrets = `${prefix}/api/v1/${inNamespace}/secrets`
  }

  create(body: object): Promise<SandboxObject> {
    return this.#call('create a sandbox', 'POST', this.#sandboxes, { body, query: { fieldManager } })
  }

  get(name: string, signal?: AbortSignal): Promise<SandboxObject> {
    return this.#call('show a sandbox', 'GET', this.#one(name), { signal })
  }

  /** The sandboxes that have all of these labels. */
  async list(labels: Readonly<Record<string, string>>): Promise<SandboxObject[]> {
    const pairs = Object.entries(labels).map(([name, value]) => `${name}=${value}`)
    const found: SandboxObject[] = []
    let next = ''
    do {
      const query = { labelSelector: pairs.join(','), limit: pageSize, ...(next ? { continue: next } : {}) }
      const page = await this.#call<{
        readonly metadata: { readonly continue?: string }
        readonly items: readonly SandboxObject[]
      }>('list sandboxes', 'GET', this.#sandboxes, { query })
      found.push(...page.items)
      next = page.metadata.continue ?? ''
    } while (next)
    return found
  }

  patch(name: string, spec: { operatingMode?: 'Running' | 'Suspended'; shutdownTime?: string }): Promise<unknown> {
    const change = { body: { spec }, type: 'application/merge-patch+json', query: { fieldManager } }
    return this.#call('change a sandbox', 'PATCH', this.#one(name), change)
  }

  /** Resolves when the deletion has begun. The object exists until its pod and its volume are deleted. */
  delete(name: string): Promise<unknown> {
    return this.#call('delete a sandbox', 'DELETE', this.#one(name), { query: { propagationPolicy: 'Foreground' } })
  }

  /** Creates the secret, or replaces our fields in it. */
  applySecret(name: string, body: object): Promise<unknown> {
    const apply = { body, type: 'application/apply-patch+yaml', query: { fieldManager, force: 'true' } }
    return this.#call('write the secret of a sandbox', 'PATCH', `${this.#secrets}/${encodeURIComponent(name)}`, apply)
  }

  #one(name: string): string {
    return `${this.#sandboxes}/${encodeURIComponent(name)}`
  }

  // Every call may be sent twice: a created object has its own name, and all other calls set absolute values.
  async #call<T>(what: string, method: Dispatcher.HttpMethod, path: string, options: Call): Promise<T> {
    const { body, type, query, signal } = options
    const ask = async (): Promise<JsonAnswer> => {
      const authorization = `Bearer ${await this.#cluster.token()}`
      return askJson(this.#cluster.dispatcher, {
        method,
        origin: this.#origin,
        path: query ? `${path}?${new URLSearchParams(query).toString()}` : path,
        headers: type === undefined ? { authorization } : { authorization, 'content-type': type },
        body,
        timeoutMs: requestMs,
        signal,
      })
    }
    const again = async (): Promise<JsonAnswer> => {
      const answer = await ask()
      // Ask again: the token was replaced while the request was on its way, or the controller changed the object.
      return answer.status === 401 || reasonOf(answer) === 'Conflict' ? ask() : answer
    }
    const answer = await askPatiently(again, { repeatable: true, withinMs: patienceMs, signal })
    if (answer.status < 200 || answer.status >= 300) throw new KubernetesError(answer, what)
    if (typeof answer.body === 'object' && answer.body !== null) return answer.body as T
    throw new Error('Kubernetes answered in an undocumented form')
  }
}

const reasonOf = ({ body }: JsonAnswer): unknown => (body as { reason?: unknown } | undefined | null)?.reason

/** The API server refused the request. Its text is only for the log and never leaves the runner unchanged. */
export class KubernetesError extends Error {
  readonly status: number
  readonly reason: unknown
  constructor(answer: JsonAnswer, what: string) {
    const { message } = (answer.body ?? {}) as { readonly message?: unknown }
    const said = typeof message === 'string' ? ` ${message.slice(0, 500)}` : ''
    super(`Kubernetes refused to ${what}: ${answer.status}${said}`)
    this.name = 'KubernetesError'
    this.status = answer.status
    this.reason = reasonOf(answer)
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof KubernetesError && error.status === 404
export const isThere = (error: unknown): boolean => error instanceof KubernetesError && error.reason === 'AlreadyExists'

interface ClusterOptions {
  /** A token to use instead of the file. */
  readonly token?: string | undefined
  readonly tokenFile: string
  /** If this file does not exist, the system's authorities are used. */
  readonly caFile: string
}

/**
 * The connection settings of an API server. Kubernetes replaces a pod's token about every hour and sometimes the authority, so both are read when
 * needed.
 */
export class ClusterAccess {
  readonly dispatcher: Dispatcher
  readonly #options: ClusterOptions

  constructor(options: ClusterOptions) {
    this.#options = options
    const connectorNow = callbackify(async () => {
      const ca = await readFile(options.caFile, 'utf8').catch((error: { code?: unknown }) => {
        if (error.code === 'ENOENT') return undefined
        throw error
      })
      return buildConnector(ca === undefined ? {} : { ca })
    })
    this.dispatcher = new Agent({
      connect: (target, done) => connectorNow((error, connect) => (error ? done(error, null) : connect(target, done))),
    })
  }

  /** The token for the header of one request. */
  async token(): Promise<string> {
    return this.#options.token ?? (await readFile(this.#options.tokenFile, 'utf8')).trim()
  }
}
