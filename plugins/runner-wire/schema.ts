import { Type } from '@sinclair/typebox'
import { clientIdPattern } from '#contracts/ids'
import { Profile, profileName } from '#contracts/profiles'

// Bodies of the runner's wire API (specification 4.22). A caller names its tenant in X-Tenant-ID.

/** Values that JSON Schema cannot list here without closing them: they pass as they are. */
const open = { additionalProperties: true }

export const TenantHeaders = Type.Object(
  { 'x-tenant-id': Type.String({ minLength: 1, maxLength: 128, description: 'Tenant of the call.' }) },
  open,
)
export const OptionalTenantHeaders = Type.Partial(TenantHeaders)

export const SessionParams = Type.Object({ id: Type.String({ maxLength: 128 }) })
export const RunParams = Type.Object({ runId: Type.String({ maxLength: 128 }) })
export const NameParams = Type.Object({ name: Type.String({ maxLength: 64 }) })

/** `GET /runner/sessions/{id}`. `status`: 0 idle, 1 running, 2 errored, 3 shutdown. */
export const WireSession = Type.Object({
  id: Type.String(),
  tenantId: Type.String(),
  profile: Profile,
  runtime: Type.String(),
  tools: Type.Array(Type.String()),
  status: Type.Integer({ minimum: 0, maximum: 3 }),
  createdAt: Type.String({ format: 'date-time' }),
  lastUsedAt: Type.String({ format: 'date-time' }),
  runtimeSessionId: Type.Optional(Type.String()),
  activeRunId: Type.Optional(Type.String()),
})

/** `POST /runner/sessions`, answered 201 with the session. */
export const CreateSession = Type.Object({ profileName }, { additionalProperties: false })

/** `POST /runner/sessions/hydrate`, answered 204. */
export const Hydrate = Type.Object(
  {
    profileName,
    sessionId: Type.String({ pattern: clientIdPattern }),
    stateB64: Type.Optional(Type.String({ description: 'Base64 of the exported bundle.' })),
    profile: Type.Optional(Profile),
    contentType: Type.Optional(
      Type.String({ maxLength: 128, description: "Of the bundle; by the profile's runtime unless given." }),
    ),
    runtimeSessionId: Type.Optional(Type.String({ maxLength: 1024 })),
    replace: Type.Optional(
      Type.Boolean({ description: "The runner's own copy, if it has one, is old: this one takes its place." }),
    ),
  },
  open,
)

/** `GET /runner/sessions/{id}/health`, always 200 for a known session. */
export const SessionHealth = Type.Object({ healthy: Type.Boolean(), error: Type.Optional(Type.String()) })

export const RuntimeSlot = Type.Object({
  runtime: Type.String(),
  mode: Type.Union([Type.Literal('sidecar'), Type.Literal('stub'), Type.Literal('unknown')]),
  url: Type.String({ description: 'Empty for a stub and for a sidecar in the same process.' }),
  activeSessions: Type.Integer({ description: 'Across tenants.' }),
})

const ToolSpec = Type.Object({
  name: Type.String(),
  description: Type.String(),
  inputSchema: Type.Record(Type.String(), Type.Unknown()),
})
export const ToolSpecs = Type.Array(ToolSpec)

/** `POST /runner/sessions/{id}/toolkit/invoke`. */
export const InvokeTool = Type.Object(
  { name: Type.String({ maxLength: 128 }), input: Type.Optional(Type.Unknown()) },
  { additionalProperties: false },
)
export const InvokeResult = Type.Object({ result: Type.Object({ ok: Type.Boolean(), content: Type.String() }) })

/** Agent pools are defined by the conductor: the runner keeps what it is told. */
export const PoolInput = Type.Object({ id: Type.Optional(Type.String({ pattern: clientIdPattern })) }, open)
export const Pool = Type.Object({ id: Type.String() }, open)

/** `POST /runner/sandbox-events/invalidate`. */
export const InvalidateSandbox = Type.Object(
  { provider: Type.String({ maxLength: 64 }), sandboxId: Type.String({ maxLength: 128 }) },
  { additionalProperties: false },
)
export const Invalidated = Type.Object({
  invalidated: Type.Integer({ description: 'How many cached states were dropped.' }),
})
