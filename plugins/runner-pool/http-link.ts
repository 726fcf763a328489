import { Agent, type Dispatcher, request } from 'undici'
import { AppError, wholeLines } from '#kernel'
import type { BroadcastChange } from '#contracts/broadcast'
import type { Delegation } from '#contracts/delegation'
import { runnerHash } from '#contracts/ids'
import type {
  RunnerInfo,
  RunnerLink,
  RunnerSession,
  RunnerTopology,
  UnsavedSession,
  VfsLease,
  WorkerLease,
} from '#contracts/runner'
import { decodeSessionStatus, tenantHeader } from '#contracts/wire/runner'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { runnerFailed, runnerUnreachable } from './errors.ts'

/** How long a runner may take over anything but a run. */
const callTimeoutMs = 10_000

/** Connections of one conductor to its runners. Unbounded: a bounded pool makes the next stream wait for another to end. */
export const createRunnerAgent = (): Agent =>
  new Agent({ connections: null, pipelining: 1, keepAliveTimeout: 30_000, connect: { timeout: 3_000 } })

interface Call {
  readonly tenantId?: string
  readonly body?: unknown
  readonly signal?: AbortSignal
  /** The answer may take as long as its reader likes: deadlines come down as `signal`. */
  readonly endless?: boolean
}

/** The runner behind a URL. Its hash is what it reports itself; until it was asked, what its URL would give. */
export function createHttpLink(baseUrl: string, agent: Agent): RunnerLink {
  const base = baseUrl.replace(/\/+$/, '')
  let hash = runnerHash(baseUrl)
  const call = async (method: Dispatcher.HttpMethod, path: string, options: Call = {}) => {
    const { tenantId, body, signal, endless } = options
    const bound = endless ? signal : AbortSignal.any([AbortSignal.timeout(callTimeoutMs), ...(signal ? [signal] : [])])
    try {
      return await request(`${base}${path}`, {
        dispatcher: agent,
        method,
        headers: {
          ...(tenantId === undefined ? {} : { [tenantHeader]: tenantId }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        body: body === undefined ? null : JSON.stringify(body),
        headersTimeout: 0,
        bodyTimeout: 0,
        ...(bound ? { signal: bound } : {}),
      })
    } catch (cause) {
      signal?.throwIfAborted()
      throw runnerUnreachable({ cause, retryable: neverConnected(cause) })
    }
  }
  const done = async (answer: Dispatcher.ResponseData): Promise<void> => {
    if (answer.statusCode >= 300) throw await refusal(answer)
    await answer.body.dump()
  }
  const segment = encodeURIComponent
  const list = async <T>(path: string, tenantId: string, signal?: AbortSignal): Promise<T[]> => {
    const found = await json(await call('GET', path, { tenantId, ...(signal ? { signal } : {}) }))
    if (!Array.isArray(found)) throw runnerFailed()
    return found as T[]
  }
  const one = async <T>(path: string, tenantId: string, signal?: AbortSignal): Promise<T | undefined> => {
    const answer = await call('GET', path, { tenantId, ...(signal ? { signal } : {}) })
    if (answer.statusCode !== 404) return (await json(answer)) as T
    await answer.body.dump()
    return undefined
  }
  const tell = async (tenantId: string, { kind, key, profile, pool }: BroadcastChange): Promise<void> => {
    const body = profile ?? pool
    if (body) return done(await call('POST', `/runner/${kind}s`, { tenantId, body }))
    const answer = await call('DELETE', `/runner/${kind}s/${segment(key)}`, { tenantId })
    if (answer.statusCode === 404) return void (await answer.body.dump())
    await done(answer)
  }
  return {
    get hash() {
      return hash
    },
    async info(signal) {
      const info = (await json(await call('GET', '/runner/info', signal ? { signal } : {}))) as RunnerInfo
      if (typeof info.hash !== 'string' || !Array.isArray(info.capabilities)) throw runnerFailed()
      hash = info.hash
      return info
    },
    async takeBroadcast(tenantId, page) {
      const answer = await call('POST', '/runner/broadcast', { tenantId, body: page })
      if (answer.statusCode !== 404) return ((await json(answer)) as { revision: number }).revision
      await answer.body.dump()
      // A runner of an earlier release or another maker: it is told one by one, and cannot say what it has.
      for (const change of page.changes) await tell(tenantId, change)
      return page.revision
    },
    async behind(revisions) {
      const answer = await call('POST', '/runner/broadcast/behind', { body: { revisions } })
      if (answer.statusCode !== 404) return ((await json(answer)) as { tenants: string[] }).tenants
      await answer.body.dump()
      return []
    },
    async getSession(tenantId, sessionId) {
      const answer = await call('GET', `/runner/sessions/${segment(sessionId)}`, { tenantId })
      if (answer.statusCode === 404) return void (await answer.body.dump())
      const session = (await json(answer)) as Omit<RunnerSession, 'status'> & { status: number }
      return { ...session, status: decodeSessionStatus(session.status) ?? 'errored' }
    },
    async deleteSession(tenantId, sessionId) {
      const answer = await call('DELETE', `/runner/sessions/${segment(sessionId)}`, { tenantId })
      if (answer.statusCode === 404) return void (await answer.body.dump())
      await done(answer)
    },
    async hydrate(tenantId, sessionId, profile, bundle, replace) {
      const body = {
        profileName: profile.name,
        sessionId,
        profile,
        ...(replace ? { replace } : {}),
        ...(bundle ? { stateB64: Buffer.from(bundle.bytes).toString('base64'), contentType: bundle.contentType } : {}),
        ...(bundle?.runtimeSessionId === undefined ? {} : { runtimeSessionId: bundle.runtimeSessionId }),
      }
      await done(await call('POST', '/runner/sessions/hydrate', { tenantId, body }))
    },
    async exportState(tenantId, sessionId) {
      const answer = await call('GET', `/runner/sessions/${segment(sessionId)}/state`, { tenantId })
      if (answer.statusCode === 404) return void (await answer.body.dump())
      if (answer.statusCode >= 300) throw await refusal(answer)
      const handle = answer.headers[runtimeSessionIdHeader]
      return {
        bytes: await answer.body.bytes(),
        contentType: String(answer.headers['content-type'] ?? 'application/octet-stream'),
        ...(typeof handle === 'string' && handle !== '' ? { runtimeSessionId: handle } : {}),
      }
    },
    async unsaved() {
      const answer = await call('GET', '/runner/state/unsaved')
      if (answer.statusCode !== 404) return (await json(answer)) as UnsavedSession[]
      // One of an earlier release, which does not wait for anybody either.
      await answer.body.dump()
      return []
    },
    topology: async (signal) =>
      (await json(await call('GET', '/runner/topology', signal ? { signal } : {}))) as RunnerTopology,
    workerLeases: (tenantId, signal) => list<WorkerLease>('/runner/worker/leases', tenantId, signal),
    workerLease: (tenantId, sessionId, signal) =>
      one<WorkerLease>(`/runner/sessions/${segment(sessionId)}/worker`, tenantId, signal),
    async invalidateSandbox(provider, sandboxId) {
      const answer = await call('POST', '/runner/sandbox-events/invalidate', { body: { provider, sandboxId } })
      if (answer.statusCode !== 404) return ((await json(answer)) as { invalidated: number }).invalidated
      // One of an earlier release, which keeps no state of a sandbox.
      await answer.body.dump()
      return 0
    },
    delegations: async (tenantId, sessionId) =>
      (await json(
        await call('GET', `/runner/sessions/${segment(sessionId)}/delegations`, { tenantId }),
      )) as Delegation[],
    async answerDelegation(tenantId, sessionId, id, answer) {
      const path = `/runner/sessions/${segment(sessionId)}/delegations`
      await done(await call('POST', path, { tenantId, body: { id, ...answer } }))
    },
    vfsLeases: (tenantId, signal) => list<VfsLease>('/runner/vfs/leases', tenantId, signal),
    vfsLease: (tenantId, sessionId, signal) =>
      one<VfsLease>(`/runner/sessions/${segment(sessionId)}/vfs-lease`, tenantId, signal),
    async *execute(tenantId, run, signal) {
      const answer = await call('POST', '/runner/runs', { tenantId, body: run, signal, endless: true })
      if (answer.statusCode >= 300) throw await refusal(answer)
      yield* wholeLines(answer.body)
    },
  }
}

/** No connection was made, so nothing was sent: what is lost on a connection that stood may have arrived. */
const neverConnected = (cause: unknown): boolean =>
  ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT'].includes(
    String((cause as { code?: unknown }).code),
  )

async function json(answer: Dispatcher.ResponseData): Promise<unknown> {
  if (answer.statusCode >= 300) throw await refusal(answer)
  return answer.body.json().catch((cause: unknown) => {
    throw runnerFailed({ cause })
  })
}

/** The runner's own error, under its own code; anything that is not one of ours is a broken runner. */
async function refusal(answer: Dispatcher.ResponseData): Promise<AppError> {
  const body = (await answer.body.json().catch(() => undefined)) as { error?: unknown; message?: unknown } | undefined
  if (typeof body?.error !== 'string') return runnerFailed({ detail: { status: answer.statusCode } })
  const message = typeof body.message === 'string' ? { message: body.message } : {}
  return new AppError(body.error, answer.statusCode, { ...message, retryable: answer.statusCode === 503 })
}
