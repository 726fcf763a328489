import { randomUUID } from 'node:crypto'
import type { TestContext } from 'node:test'
import type { Static, TSchema } from '@sinclair/typebox'
import { Ajv } from 'ajv'
import { type ApiAnswer, type ApiRequest, type StandInApi, startStandInApi } from '#testing'
import { type Controller, createController, type FakeSandbox } from './controller.ts'
import { Sandbox, SandboxPatch, Secret } from './documented.ts'

export interface FakeClusterOptions {
  readonly namespace: string
  readonly images: Readonly<Record<string, readonly string[]>>
  /** Looks at an object until its status says what is. */
  readonly statusLag: number
}

/** The API server of a cluster with agent-sandbox, as far as it is used; its pods are processes of this machine. */
export interface FakeCluster extends StandInApi {
  /** The token that is valid now. */
  token: string
  readonly sandboxes: ReadonlyMap<string, FakeSandbox>
  readonly secrets: ReadonlyMap<string, Static<typeof Secret>>
  readonly named: (request: string) => readonly ApiRequest[]
  /** Names of everything that there is, processes included. */
  remains(): Promise<string[]>
}

const failure = (code: number, reason: string, message: string): ApiAnswer => ({
  status: code,
  body: { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure', message, reason, code },
})

export async function startFakeCluster(
  t: Pick<TestContext, 'after'>,
  given: Partial<FakeClusterOptions> = {},
): Promise<FakeCluster> {
  const options: FakeClusterOptions = { namespace: 'agents', images: {}, statusLag: 2, ...given }
  const sandboxes = new Map<string, FakeSandbox>()
  const secrets = new Map<string, Static<typeof Secret>>()
  const collecting = new Set<Promise<void>>()
  const controller = createController({ ...options, secretOf: (name) => secrets.get(name) })
  const serve = createRoutes({ sandboxes, secrets, controller, ...options }, (sandbox) => {
    for (const [name, { metadata }] of secrets) {
      if (metadata.ownerReferences?.some(({ uid }) => uid === sandbox.uid)) secrets.delete(name)
    }
    const collected = controller.collect(sandbox).finally(() => {
      sandboxes.delete(sandbox.name)
      collecting.delete(collected)
    })
    collecting.add(collected)
  })
  const cluster = { token: 'token-of-a-service-account' }
  const api = await startStandInApi(t, (request) =>
    request.headers.authorization === `Bearer ${cluster.token}`
      ? serve(request)
      : failure(401, 'Unauthorized', 'Unauthorized'),
  )
  t.after(async () => {
    await Promise.all([...sandboxes.values()].map((sandbox) => controller.collect(sandbox)))
    await Promise.all(collecting)
  })
  return Object.assign(cluster, api, {
    sandboxes,
    secrets,
    named: (request: string) => api.requests.filter(({ method, url }) => `${method} ${url}` === request),
    async remains() {
      const machines = [...sandboxes.values()].flatMap(({ machine }) => machine ?? [])
      const pids = await Promise.all(machines.map((machine) => machine.pids()))
      const left = [...collecting].map(() => 'something that is being collected')
      return [
        ...sandboxes.keys(),
        ...[...secrets.keys()].map((name) => `secret ${name}`),
        ...pids.flat().map(String),
        ...left,
      ]
    },
  })
}

interface Objects extends FakeClusterOptions {
  readonly sandboxes: Map<string, FakeSandbox>
  readonly secrets: Map<string, Static<typeof Secret>>
  readonly controller: Controller
}

const ajv = new Ajv({ strict: false })

function createRoutes(objects: Objects, onDeleted: (sandbox: FakeSandbox) => void) {
  const { namespace, sandboxes, secrets, controller, statusLag } = objects
  const base = `/apis/agents.x-k8s.io/v1beta1/namespaces/${namespace}/sandboxes`
  const ofSecrets = `/api/v1/namespaces/${namespace}/secrets/`
  const shown = ({ uid, name, manifest, labels, generation, mode, deleted, conditions }: FakeSandbox): object => ({
    ...manifest,
    metadata: {
      ...manifest.metadata,
      namespace,
      name,
      uid,
      labels,
      generation,
      creationTimestamp: '2026-11-21T00:00:00Z',
      ...(deleted ? { deletionTimestamp: '2026-11-21T01:00:00Z', finalizers: ['foregroundDeletion'] } : {}),
    },
    spec: { ...manifest.spec, operatingMode: mode },
    ...(conditions.length === 0 ? {} : { status: { conditions } }),
  })
  const checked = <T extends TSchema>(
    schema: T,
    { body }: ApiRequest,
    serve: (object: Static<T>) => ApiAnswer,
  ): ApiAnswer => {
    const object: unknown = JSON.parse(body.toString('utf8'))
    if (ajv.validate<Static<T>>(schema, object)) return serve(object)
    return failure(422, 'Invalid', ajv.errorsText())
  }
  const create = (request: ApiRequest): ApiAnswer =>
    checked(Sandbox, request, (manifest) => {
      const { name, labels = {} } = manifest.metadata
      if (sandboxes.has(name)) {
        return failure(409, 'AlreadyExists', `sandboxes.agents.x-k8s.io "${name}" already exists`)
      }
      const sandbox: FakeSandbox = {
        uid: randomUUID(),
        name,
        labels,
        manifest,
        mode: manifest.spec.operatingMode ?? 'Running',
        deleted: false,
        shutdownTime: manifest.spec.shutdownTime,
        generation: 1,
        machine: undefined,
        pod: undefined,
        conditions: [],
        lag: statusLag,
      }
      sandboxes.set(name, sandbox)
      controller.reconcile(sandbox)
      return { status: 201, body: shown(sandbox) }
    })
  const list = (query: URLSearchParams): ApiAnswer => {
    const wanted = (query.get('labelSelector') ?? '').split(',').map((pair) => pair.split('='))
    const found = [...sandboxes.values()].filter(({ labels }) =>
      wanted.every(([name, value]) => name === '' || labels[name!] === value),
    )
    const from = Number(query.get('continue') ?? 0)
    const to = from + Number(query.get('limit') ?? found.length)
    const metadata = to < found.length ? { continue: String(to) } : {}
    return { status: 200, body: { kind: 'SandboxList', metadata, items: found.slice(from, to).map(shown) } }
  }
  const one = (sandbox: FakeSandbox, query: URLSearchParams, request: ApiRequest): ApiAnswer => {
    switch (request.method) {
      case 'GET':
        controller.look(sandbox)
        return { status: 200, body: shown(sandbox) }
      case 'PATCH':
        if (request.headers['content-type'] !== 'application/merge-patch+json') return unsupported
        return checked(SandboxPatch, request, ({ spec: { operatingMode = sandbox.mode, shutdownTime } }) => {
          if (shutdownTime !== undefined) sandbox.shutdownTime = shutdownTime
          if (operatingMode !== sandbox.mode || shutdownTime !== undefined) sandbox.generation++
          if (operatingMode !== sandbox.mode) {
            sandbox.mode = operatingMode
            controller.reconcile(sandbox)
          }
          return { status: 200, body: shown(sandbox) }
        })
      case 'DELETE':
        // In the foreground an object stays until what belongs to it is gone.
        if (query.get('propagationPolicy') !== 'Foreground') sandboxes.delete(sandbox.name)
        if (!sandbox.deleted) onDeleted(sandbox)
        sandbox.deleted = true
        return { status: 200, body: shown(sandbox) }
      default:
        return failure(405, 'MethodNotAllowed', 'the server does not allow this method on the requested resource')
    }
  }
  const apply = (name: string, query: URLSearchParams, request: ApiRequest): ApiAnswer => {
    if (request.headers['content-type'] !== 'application/apply-patch+yaml') return unsupported
    if (!query.has('fieldManager')) return failure(400, 'BadRequest', 'fieldManager is required for apply patch')
    return checked(Secret, request, (secret) => {
      if (secret.metadata.name !== name) return failure(400, 'BadRequest', 'the name of the object does not match')
      const created = !secrets.has(name)
      secrets.set(name, secret)
      return { status: created ? 201 : 200, body: secret }
    })
  }

  return (request: ApiRequest): ApiAnswer => {
    const { pathname, searchParams } = new URL(request.url, 'http://cluster')
    if (pathname.startsWith(ofSecrets) && request.method === 'PATCH') {
      return apply(pathname.slice(ofSecrets.length), searchParams, request)
    }
    if (pathname === base) return request.method === 'POST' ? create(request) : list(searchParams)
    const sandbox = pathname.startsWith(`${base}/`) ? sandboxes.get(pathname.slice(base.length + 1)) : undefined
    if (sandbox) return one(sandbox, searchParams, request)
    return failure(404, 'NotFound', `"${pathname}" not found`)
  }
}

const unsupported = failure(415, 'UnsupportedMediaType', 'the body of the request was in an unknown format')
