import type { Static } from '@sinclair/typebox'
import { type App, isAppError, notFound, invalidRequest } from '#kernel'
import { newId } from '#contracts/ids'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { Toolkit } from '#contracts/tools'
import { encodeSessionStatus, maxStateBytes, runnerWire, tenantHeader } from '#contracts/wire/runner'
import { decodeSkill } from '#contracts/wire/runner-tools'
import type { WireSession } from '#contracts/wire/runner-bodies'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { awaitFirstChunk, serve } from '#kit'
import { arrayParts } from '#kit/lists'
import { leadsTo } from '#kit/outbound'
import type { Runner } from './runner.ts'
import { linkOf } from './sessions.ts'

/** What this runner is and can do, what conductors tell it, and what its sessions hold outside of it. Counts include all tenants. */
export function runnerRoutes(app: App, runner: Runner): void {
  const { table, broadcast } = runner
  const { sidecars, sandboxes, vfs } = runner.executors

  serve(app, runnerWire.info, async () => {
    runner.askedAt = Date.now()
    return { json: await runner.info() }
  })

  serve(app, runnerWire.runtimes, async () => {
    await sidecars.runtimes()
    const counts = table.byRuntime()
    const slots = sidecars.slots()
    return {
      json: slots.map(({ runtime, mode, url }) => ({ runtime, mode, url, activeSessions: counts[runtime] ?? 0 })),
    }
  })

  serve(app, runnerWire.topology, async () => ({ json: await runner.topology() }))
  serve(app, runnerWire.usage, async ({ headers }) => ({ json: (await runner.usage(headers[tenantHeader]))! }))

  serve(app, runnerWire.profiles, ({ headers }) => ({ parts: arrayParts(broadcast.profiles(headers[tenantHeader])) }))
  serve(app, runnerWire.putProfile, ({ headers, body }) => broadcast.putProfile(headers[tenantHeader], body))
  serve(app, runnerWire.deleteProfile, ({ headers, params }) =>
    broadcast.deleteProfile(headers[tenantHeader], params.name),
  )

  serve(app, runnerWire.pools, ({ headers }) => ({ parts: arrayParts(broadcast.pools(headers[tenantHeader])) }))
  serve(app, runnerWire.putPool, ({ headers, body }) => {
    const pool = { ...body, id: body.id ?? newId('pool') }
    broadcast.putPool(headers[tenantHeader], pool)
    return { json: pool }
  })
  serve(app, runnerWire.deletePool, ({ headers, params }) => {
    if (!broadcast.deletePool(headers[tenantHeader], params.id)) throw notFound()
  })

  serve(app, runnerWire.takeBroadcast, ({ headers, body }) => ({
    json: { revision: broadcast.take(headers[tenantHeader], body) },
  }))
  serve(app, runnerWire.behind, ({ body }) => ({ json: { tenants: broadcast.behind(body.revisions) } }))

  serve(app, runnerWire.vfsLeases, ({ headers }) => ({ parts: arrayParts(vfs?.leases(headers[tenantHeader]) ?? []) }))
  serve(app, runnerWire.vfsLease, async ({ headers, params }) => {
    const lease = await readable(vfs?.lease(headers[tenantHeader], params.id))
    if (!lease) throw runnerErrors.noVfsSession()
    return { json: lease }
  })

  serve(app, runnerWire.workerLeases, async ({ headers }) => {
    const leases = await readable(sandboxes?.leases(headers[tenantHeader]))
    return { json: (leases ?? []).toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1)) }
  })
  serve(app, runnerWire.workerLease, async ({ headers, params }) => {
    const lease = await readable(sandboxes?.lease(headers[tenantHeader], params.id))
    if (!lease) throw runnerErrors.noSandboxWorker()
    return { json: lease }
  })
  serve(app, runnerWire.invalidateSandbox, async ({ body }) => ({
    json: { invalidated: await runner.invalidateSandbox(body.provider, body.sandboxId) },
  }))
}

const readable = async <T>(lease: Promise<T> | undefined): Promise<T | undefined> =>
  lease?.catch((cause: unknown) => {
    throw isAppError(cause) && cause.status < 500 ? cause : runnerErrors.upstream({ cause })
  })

/** The sessions in this runner's memory, and the export and import of their state. */
export function sessionRoutes(app: App, runner: Runner, log: { warn(fields: object, message: string): void }): void {
  serve(app, runnerWire.sessions, ({ headers }) => {
    const ofTenant = [...runner.table.all()].filter((session) => session.tenantId === headers[tenantHeader])
    return { parts: arrayParts(ofTenant, onWire) }
  })
  serve(app, runnerWire.createSession, ({ headers, body }) => ({
    json: onWire(runner.createSession(headers[tenantHeader], body.profileName)),
  }))
  serve(app, runnerWire.getSession, ({ headers, params }) => ({
    json: onWire(sessionOf(runner, headers[tenantHeader], params.id)),
  }))
  serve(app, runnerWire.deleteSession, ({ headers, params }) => runner.deleteSession(headers[tenantHeader], params.id))
  serve(app, runnerWire.sessionHealth, async ({ headers, params }) => {
    const session = sessionOf(runner, headers[tenantHeader], params.id)
    try {
      await linkOf(runner.executors, session).health()
      return { json: { healthy: true } }
    } catch (error) {
      const sentence = (isAppError(error) && error.sentence) || 'The sidecar does not answer.'
      return { json: { healthy: false, error: sentence } }
    }
  })

  serve(app, runnerWire.hydrate, async ({ headers, body }) => {
    const tenantId = headers[tenantHeader]
    const profile = body.profile ?? runner.broadcast.profile(tenantId, body.profileName)
    if (!profile || profile.name !== body.profileName) throw runnerErrors.unknownProfile()
    const bytes = body.stateB64 === undefined ? undefined : decode(body.stateB64)
    const bundle = bytes && {
      bytes,
      contentType: body.contentType ?? contentTypeOf(profile),
      ...(body.runtimeSessionId === undefined ? {} : { runtimeSessionId: body.runtimeSessionId }),
    }
    await runner.hydrate(tenantId, body.sessionId, profile, bundle, body.replace)
  })
  serve(app, runnerWire.unsaved, async () => ({ json: [...(await runner.unsaved())] }))
  serve(app, runnerWire.exportState, async ({ headers, params: { id } }) => {
    const bundle = await runner.exportState(headers[tenantHeader], id).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) throw error
      log.warn({ err: error, sessionId: id }, 'a state export failed')
      throw runnerErrors.stateExportFailed({ cause: error })
    })
    if (!bundle) throw runnerErrors.noState()
    if (bundle.bytes.byteLength > maxStateBytes) {
      throw runnerErrors.stateExportFailed({ message: "The session's state is larger than 64 MiB." })
    }
    const { bytes, contentType, runtimeSessionId: handle } = bundle
    return { bytes, type: contentType, headers: handle === undefined ? {} : { [runtimeSessionIdHeader]: handle } }
  })
}

/** The skills of sessions, which conductors bring. */
export function skillRoutes(app: App, runner: Runner): void {
  serve(app, runnerWire.putSkill, ({ headers, body }) => runner.putSkill(headers[tenantHeader], decodeSkill(body)))
}

interface RunServices {
  readonly sessions: RunnerSessions
  readonly toolkit: Toolkit
  /** The hosts to which runs may send their sidecar. Empty: any host. */
  readonly mcpHosts: readonly string[]
}

/** The runs of sessions, and the tools that they use. */
export function runRoutes(app: App, runner: Runner, { sessions, toolkit, mcpHosts }: RunServices): void {
  // The runner writes the first line itself and at once. A refusal comes instead of that line, while a status can still be sent.
  serve(app, runnerWire.execute, async ({ headers, body, signal }) => {
    const strange = mcpHosts.length > 0 && body.mcpServers?.find(({ url }) => !leadsTo(url, mcpHosts))
    if (strange) {
      throw runnerErrors.hostNotAllowed({
        message: `This runner does not allow the host of the MCP server '${strange.name}'; add it to AGENT_ORC_MCP_HOSTS.`,
      })
    }
    return { lines: await awaitFirstChunk(runner.execute(headers[tenantHeader], body, signal)) }
  })
  serve(app, runnerWire.attach, async ({ headers, body, signal }) => ({
    lines: await awaitFirstChunk(runner.attach(headers[tenantHeader], body, signal)),
  }))
  serve(app, runnerWire.cancelRun, ({ headers, params, query }) =>
    runner.runs.cancel(headers[tenantHeader], params.runId, query.reason),
  )

  serve(app, runnerWire.toolSpecs, () => ({ json: toolkit.specs() }))
  serve(app, runnerWire.sessionToolSpecs, ({ headers, params }) => ({
    json: sessions.toolSpecs(sessionOf(runner, headers[tenantHeader], params.id)),
  }))
  // A failure of the tool itself is 200 with `ok: false`. Other statuses belong to the wire protocol.
  serve(app, runnerWire.invokeTool, async ({ headers, params, body, signal }) => {
    const session = sessionOf(runner, headers[tenantHeader], params.id)
    return { json: { result: await sessions.invokeTool(session, body.name, body.input, signal, body.callId) } }
  })

  // Tool calls that wait for a run of another profile. A conductor learns of such a call by the run's events, starts the child run and answers.
  serve(app, runnerWire.delegations, async ({ headers, params }) => {
    const { id, tenantId } = sessionOf(runner, headers[tenantHeader], params.id)
    return { json: [...(await runner.delegations(tenantId, id))] }
  })
  serve(app, runnerWire.objectWrites, async ({ headers, params, query: { runId, after } }) => {
    const { id, tenantId } = sessionOf(runner, headers[tenantHeader], params.id)
    return { json: [...(await runner.objectWrites(tenantId, id, runId, after))] }
  })
  serve(app, runnerWire.answerDelegation, async ({ headers, params, body }) => {
    const { id, tenantId } = sessionOf(runner, headers[tenantHeader], params.id)
    const { id: delegationId, ...answer } = body
    await runner.answerDelegation(tenantId, id, delegationId, answer)
  })
}

/** The session, if it belongs to the tenant. Foreign and unknown ids get the same answer. */
function sessionOf({ table }: Runner, tenantId: string, id: string): RunnerSession {
  const session = table.find(tenantId, id)
  if (!session) throw runnerErrors.unknownSession()
  return session
}

/** Copies field by field, because a runner's session holds more than callers may see. */
function onWire(session: RunnerSession): Static<typeof WireSession> {
  const { id, tenantId, profile, tools, status, createdAt, lastUsedAt, runtimeSessionId, activeRunId } = session
  return {
    id,
    tenantId,
    profile,
    runtime: profile.runtime,
    tools: [...tools],
    status: encodeSessionStatus(status),
    createdAt,
    lastUsedAt,
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
    ...(activeRunId === undefined ? {} : { activeRunId }),
  }
}

/** The content type of a bundle whose sender names none. Specification 4.23. */
const contentTypeOf = (profile: Profile): string =>
  profile.runtime === 'general' ? 'application/json' : 'application/gzip'

/** Checks the text first, because Node ignores characters that are not base64. Both alphabets are accepted, and padding may be missing. */
function decode(text: string): Buffer {
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(text) || text.replace(/=+$/, '').length % 4 === 1)
    throw invalidRequest({ message: 'stateB64 is not base64.' })
  return Buffer.from(text, 'base64')
}
