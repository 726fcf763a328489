import { Type } from '@sinclair/typebox'
import { clientIdPattern } from '../ids.ts'
import { Profile, profileName } from '../profiles.ts'
import { maxReplayBytes } from '../replay.ts'
import { RunnerInfo } from '../runner.ts'
import { sessionStatuses, type SessionStatus } from '../sessions.ts'

export { VfsLease, WorkerLease } from '../leases.ts'

// The bodies of the runner's wire, and their size limits.

/** The header with the tenant of a call. It is a plain header, because the network is trusted. Specification 4.22. */
export const tenantHeader = 'x-tenant-id'

/** The runner's state-bundle size cap. Specification 7. */
export const maxStateBytes = 64 * 1024 * 1024
/** Base64 of the largest bundle, and room for the rest of the body. */
export const maxHydrateBytes = Math.ceil(maxStateBytes / 3) * 4 + 1024 * 1024
/** A page is about 256 KiB, but has at least one profile, which can be up to twice as large as its conductor's largest body. */
export const maxPageBytes = 8 * 1024 * 1024
/** A prompt has at most 1,000,000 characters. Its attachments, the profile that creates a session, and the replay come with it. */
export const maxRunBytes = 16 * 1024 * 1024 + maxReplayBytes

export const tenant = Type.Object(
  { [tenantHeader]: Type.String({ minLength: 1, maxLength: 128, description: 'Tenant of the call.' }) },
  { additionalProperties: true },
)
export const anyTenant = Type.Partial(tenant)
export const session = Type.Object({ id: Type.String({ maxLength: 128 }) })
export const named = Type.Object({ name: Type.String({ maxLength: 64 }) })

/** Values that JSON Schema cannot list here without closing the object. They pass unchanged. */
const open = { additionalProperties: true }

/** An older runner omits `substrates` and `substratesKnown`: it has none and does not know. Specification 9. */
export const WireInfo = Type.Composite([
  Type.Omit(RunnerInfo, ['instance', 'substrates', 'substratesKnown', 'capabilitiesKnown']),
  Type.Partial(Type.Pick(RunnerInfo, ['instance', 'substrates', 'substratesKnown', 'capabilitiesKnown'])),
])

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

export const Hydrate = Type.Object(
  {
    profileName,
    sessionId: Type.String({ pattern: clientIdPattern }),
    stateB64: Type.Optional(Type.String({ description: 'Base64 of the exported bundle.' })),
    profile: Type.Optional(Profile),
    contentType: Type.Optional(
      Type.String({ maxLength: 128, description: "Of the bundle; by the profile's runtime by default." }),
    ),
    runtimeSessionId: Type.Optional(Type.String({ maxLength: 1024 })),
    replace: Type.Optional(
      Type.Boolean({ description: "The runner's own copy, if any, is old: this one replaces it." }),
    ),
  },
  open,
)

export const RuntimeSlot = Type.Object({
  runtime: Type.String(),
  mode: Type.Union([Type.Literal('sidecar'), Type.Literal('stub'), Type.Literal('unknown')]),
  url: Type.String({ description: 'Empty for a stub and for a sidecar in the same process.' }),
  activeSessions: Type.Integer({ description: 'Across tenants.' }),
})

export const ToolSpecs = Type.Array(
  Type.Object({
    name: Type.String(),
    description: Type.String(),
    inputSchema: Type.Record(Type.String(), Type.Unknown()),
  }),
)

/** The conductor defines agent pools. The runner only stores what it is sent. */
export const RunnerPoolInput = Type.Object({ id: Type.Optional(Type.String({ pattern: clientIdPattern })) }, open)
export const RunnerPool = Type.Object({ id: Type.String() }, open)

export const Attach = Type.Object(
  {
    sessionId: Type.String(),
    runId: Type.String(),
    afterSeq: Type.Integer({ minimum: 0, description: 'The last event that is stored.' }),
    epoch: Type.Integer({ minimum: 0, description: "Of the reader's claim." }),
  },
  open,
)

export const InvokeTool = Type.Object(
  {
    name: Type.String({ maxLength: 128 }),
    input: Type.Optional(Type.Unknown()),
    callId: Type.Optional(
      Type.String({ maxLength: 512, description: 'Names the call: the tool is given it as its idempotency key.' }),
    ),
  },
  { additionalProperties: false },
)
export const InvokeResult = Type.Object({ result: Type.Object({ ok: Type.Boolean(), content: Type.String() }) })

export const InvalidateSandbox = Type.Object(
  { provider: Type.String({ maxLength: 64 }), sandboxId: Type.String({ maxLength: 128 }) },
  { additionalProperties: false },
)
export const Invalidated = Type.Object({
  invalidated: Type.Integer({ description: 'How many cached states were dropped.' }),
})

/** Session status on the runner wire: 0 idle, 1 running, 2 errored, 3 shutdown. Specification 2.5. */
export const encodeSessionStatus = (status: SessionStatus): number => sessionStatuses.indexOf(status)
export const decodeSessionStatus = (code: number): SessionStatus | undefined => sessionStatuses[code]

export const runLines = {
  status: 200,
  lines: Type.String(),
  description: 'RunEvents, one a line; the last one is `result` or `error`.',
} as const
