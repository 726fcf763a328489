import { Type } from '@sinclair/typebox'
import { access, type App, failure, isAppError, negotiated, NoContent } from '#kernel'
import type { Profile } from '#contracts/profiles'
import { type RunnerService, UnsavedSession } from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { badState, exportFailed, noState, unknownProfile } from './errors.ts'
import { Hydrate, SessionParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

const tags = ['sessions']

/** The runner's state-bundle size cap. Specification 7. */
const maxStateBytes = 64 * 1024 * 1024
/** Base64 of the largest bundle, and room for the rest of the body. */
const maxHydrateBytes = Math.ceil(maxStateBytes / 3) * 4 + 1024 * 1024
const bytes = Type.String({ format: 'binary' })
const bundleForms = { 'application/json': Type.Unknown(), 'application/gzip': bytes, 'application/octet-stream': bytes }
/** What a bundle is when its sender does not say. Specification 4.23. */
const contentTypeOf = (profile: Profile): string =>
  profile.runtime === 'general' ? 'application/json' : 'application/gzip'

/** Sessions out of and into this runner's memory. Specification 4.22. */
export function stateRoutes(app: App, core: RunnerService, log: { warn(fields: object, message: string): void }): void {
  app.post(
    '/runner/sessions/hydrate',
    {
      ...access('network'),
      bodyLimit: maxHydrateBytes,
      schema: {
        tags,
        summary: 'Hydrate a session',
        description: 'Changes nothing when the session is here already, unless told to `replace` it.',
        headers: TenantHeaders,
        body: Hydrate,
        response: {
          204: NoContent,
          404: failure('`unknown_profile`, or `unknown_session`: another tenant has a session of this id.'),
          502: failure('`sidecar_lost` or `sidecar_keeps_no_state`: the sidecar did not take the state.'),
        },
      },
    },
    async (request, reply) => {
      const { body } = request
      const tenantId = tenantOf(request)
      const profile = body.profile ?? core.profiles(tenantId).find(({ name }) => name === body.profileName)
      if (!profile || profile.name !== body.profileName) throw unknownProfile()
      const bytes = body.stateB64 === undefined ? undefined : decode(body.stateB64)
      const bundle: StateBundle | undefined = bytes && {
        bytes,
        contentType: body.contentType ?? contentTypeOf(profile),
        ...(body.runtimeSessionId === undefined ? {} : { runtimeSessionId: body.runtimeSessionId }),
      }
      await core.hydrate(tenantId, body.sessionId, profile, bundle, body.replace)
      return reply.code(204).send()
    },
  )

  app.get(
    '/runner/state/unsaved',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'List sessions with unsaved state',
        description: 'Of all tenants: resting ones whose conversation changed since it was exported last.',
        response: { 200: Type.Array(UnsavedSession) },
      },
    },
    async () => [...(await core.unsaved())],
  )

  app.get(
    '/runner/sessions/:id/state',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Export the state of a session',
        description: 'The bundle as its sidecar gave it out, at most 64 MiB; `X-Runtime-Session-Id` belongs to it.',
        headers: TenantHeaders,
        params: SessionParams,
        response: {
          200: negotiated('The bundle, in the form of its runtime.', bundleForms),
          404: failure('`unknown_session`, or `no_state`.'),
          500: failure('`state_export_failed`: the sidecar failed, or the bundle is too large.'),
        },
      },
    },
    async (request, reply) => {
      const { id } = request.params
      const bundle = await core.exportState(tenantOf(request), id).catch((error: unknown) => {
        if (isAppError(error) && error.status === 404) throw error
        log.warn({ err: error, sessionId: id }, 'a state export failed')
        throw exportFailed({ cause: error })
      })
      if (!bundle) throw noState()
      if (bundle.bytes.byteLength > maxStateBytes) {
        throw exportFailed({ message: "The session's state is larger than 64 MiB." })
      }
      if (bundle.runtimeSessionId !== undefined) {
        void reply.header(runtimeSessionIdHeader, bundle.runtimeSessionId)
      }
      return reply.type(bundle.contentType).send(Buffer.from(bundle.bytes))
    },
  )
}

/** Node skips what is not base64, so the text is checked first; both alphabets are taken, padding may be missing. */
function decode(text: string): Buffer {
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(text) || text.replace(/=+$/, '').length % 4 === 1) throw badState()
  return Buffer.from(text, 'base64')
}
