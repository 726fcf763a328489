import type { Static } from '@sinclair/typebox'
import { type App, appError, isAppError } from '#kernel'
import type { Profile } from '#contracts/profiles'
import { leaving, type RunnerService, type RunnerSession, type RunnerSessions } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import type { Toolkit } from '#contracts/tools'
import { encodeSessionStatus, maxStateBytes, runnerWire, tenantHeader } from '#contracts/wire/runner'
import type { WireSession } from '#contracts/wire/runner-bodies'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { begun, serve } from '#kit'

/** Also for another tenant's session: a caller cannot tell the two apart. */
const unknownSession = appError('unknown_session', 404)
const unknownProfile = appError('unknown_profile', 404)
const badState = appError('invalid_request', 400, 'stateB64 is not base64.')
const noState = appError('no_state', 404, 'The session has no state to export.')
const exportFailed = appError('state_export_failed', 500, 'The sidecar did not give the state out.')

interface Sessions {
  readonly core: RunnerService
  readonly sessions: RunnerSessions
  readonly toolkit: Toolkit
  readonly log: { warn(fields: object, message: string): void }
}

/** Sessions in this runner's memory, their runs, their state out of it and into it, and their tools. */
export function sessionRoutes(app: App, { core, sessions, toolkit, log }: Sessions): void {
  /** The session when it is the tenant's; otherwise the one answer for foreign and unknown ids. */
  const sessionOf = (tenantId: string, id: string): RunnerSession => {
    const session = sessions.get(id)
    if (session?.tenantId !== tenantId) throw unknownSession()
    return session
  }

  serve(app, runnerWire.sessions, ({ headers }) => ({
    json: sessions
      .list()
      .filter((session) => session.tenantId === headers[tenantHeader])
      .map(onWire),
  }))
  serve(app, runnerWire.createSession, ({ headers, body }) => ({
    json: onWire(core.createSession(headers[tenantHeader], body.profileName)),
  }))
  serve(app, runnerWire.getSession, ({ headers, params }) => ({
    json: onWire(sessionOf(headers[tenantHeader], params.id)),
  }))
  serve(app, runnerWire.deleteSession, ({ headers, params }) => core.deleteSession(headers[tenantHeader], params.id))
  serve(app, runnerWire.sessionHealth, async ({ headers, params }) => {
    const session = sessionOf(headers[tenantHeader], params.id)
    try {
      await core.checkSession(session)
      return { json: { healthy: true } }
    } catch (error) {
      const sentence = (isAppError(error) && error.sentence) || 'The sidecar does not answer.'
      return { json: { healthy: false, error: sentence } }
    }
  })

  serve(app, runnerWire.hydrate, async ({ headers, body }) => {
    const tenantId = headers[tenantHeader]
    const profile = body.profile ?? core.profiles(tenantId).find(({ name }) => name === body.profileName)
    if (!profile || profile.name !== body.profileName) throw unknownProfile()
    const bytes = body.stateB64 === undefined ? undefined : decode(body.stateB64)
    const bundle: StateBundle | undefined = bytes && {
      bytes,
      contentType: body.contentType ?? contentTypeOf(profile),
      ...(body.runtimeSessionId === undefined ? {} : { runtimeSessionId: body.runtimeSessionId }),
    }
    await core.hydrate(tenantId, body.sessionId, profile, bundle, body.replace)
  })
  serve(app, runnerWire.unsaved, async () => ({ json: [...(await core.unsaved())] }))
  serve(app, runnerWire.exportState, async ({ headers, params: { id } }) => {
    const bundle = await core.exportState(headers[tenantHeader], id).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) throw error
      log.warn({ err: error, sessionId: id }, 'a state export failed')
      throw exportFailed({ cause: error })
    })
    if (!bundle) throw noState()
    if (bundle.bytes.byteLength > maxStateBytes) {
      throw exportFailed({ message: "The session's state is larger than 64 MiB." })
    }
    const { bytes, contentType, runtimeSessionId: handle } = bundle
    return { bytes, type: contentType, headers: handle === undefined ? {} : { [runtimeSessionIdHeader]: handle } }
  })

  serve(app, runnerWire.toolSpecs, () => ({ json: [...toolkit.specs()] }))
  serve(app, runnerWire.sessionToolSpecs, ({ headers, params }) => ({
    json: sessions.toolSpecs(sessionOf(headers[tenantHeader], params.id)),
  }))
  // A tool's own failure is 200 with `ok: false`; other statuses are the wire's.
  serve(app, runnerWire.invokeTool, async ({ headers, params, body, signal }) => {
    const session = sessionOf(headers[tenantHeader], params.id)
    return { json: { result: await sessions.invokeTool(session, body.name, body.input, signal) } }
  })

  // Tool calls that wait for a run of another profile: a conductor reads of one in the run's events, starts it and answers.
  serve(app, runnerWire.delegations, async ({ headers, params }) => {
    const { id, tenantId } = sessionOf(headers[tenantHeader], params.id)
    return { json: [...(await core.delegations(tenantId, id))] }
  })
  serve(app, runnerWire.answerDelegation, async ({ headers, params, body }) => {
    const { id, tenantId } = sessionOf(headers[tenantHeader], params.id)
    const { id: delegationId, ...answer } = body
    await core.answerDelegation(tenantId, id, delegationId, answer)
  })

  // The first line is the runner's own and comes at once; a refusal comes instead of it, while a status can still be sent.
  serve(app, runnerWire.execute, async ({ headers, body, signal }) => ({
    lines: await begun(core.execute(headers[tenantHeader], body, body.keepMs ? left(signal) : signal)),
  }))

  serve(app, runnerWire.attach, async ({ headers, body, signal }) => ({
    lines: await begun(core.attach(headers[tenantHeader], body, left(signal))),
  }))

  serve(app, runnerWire.cancelRun, ({ headers, params, query }) =>
    core.cancelRun(headers[tenantHeader], params.runId, query.reason),
  )
}

/** Of a run that is kept: a reader whose connection is gone leaves it to another one. Who wants it to end says so. */
function left(signal: AbortSignal): AbortSignal {
  const reader = new AbortController()
  const pass = (): void => reader.abort(signal.reason === 'client_gone' ? leaving : signal.reason)
  if (signal.aborted) pass()
  else signal.addEventListener('abort', pass, { once: true })
  return reader.signal
}

/** Named one by one: a runner's session may hold more than is anybody's business. */
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

/** What a bundle is when its sender does not say. Specification 4.23. */
const contentTypeOf = (profile: Profile): string =>
  profile.runtime === 'general' ? 'application/json' : 'application/gzip'

/** Node skips what is not base64, so the text is checked first; both alphabets are taken, padding may be missing. */
function decode(text: string): Buffer {
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(text) || text.replace(/=+$/, '').length % 4 === 1) throw badState()
  return Buffer.from(text, 'base64')
}
