import { type TObject, type TSchema, Type } from '@sinclair/typebox'
import { BroadcastPage, BroadcastRevisions } from '../broadcast.ts'
import { Delegation, DelegationAnswer } from '../delegation.ts'
import { clientIdPattern } from '../ids.ts'
import { Profile, profileName } from '../profiles.ts'
import { maxReplayBytes } from '../replay.ts'
import { ExecuteRun, RunnerInfo, RunnerTopology, UnsavedSession, VfsLease, WorkerLease } from '../runner.ts'
import { sessionStatuses, type SessionStatus } from '../sessions.ts'
import { bundleForms } from './sidecar.ts'
import type { Wire } from './route.ts'

// What conductors ask of a runner. Specification 4.22: a trusted network, so the tenant of a call is a plain header.

export const tenantHeader = 'x-tenant-id'

/** Session status on the runner wire: 0 idle, 1 running, 2 errored, 3 shutdown. Specification 2.5. */
export const encodeSessionStatus = (status: SessionStatus): number => sessionStatuses.indexOf(status)
export const decodeSessionStatus = (code: number): SessionStatus | undefined => sessionStatuses[code]

/** The runner's state-bundle size cap. Specification 7. */
export const maxStateBytes = 64 * 1024 * 1024
/** Base64 of the largest bundle, and room for the rest of the body. */
const maxHydrateBytes = Math.ceil(maxStateBytes / 3) * 4 + 1024 * 1024
/** A page is about 1 MiB, and at least one profile, which can be as large as its conductor's largest body twice over. */
const maxPageBytes = 8 * 1024 * 1024
/** A prompt is at most 1,000,000 characters; its attachments and the profile that creates a session come along, and what was finished before. */
const maxRunBytes = 16 * 1024 * 1024 + maxReplayBytes

/** Values that JSON Schema cannot list here without closing them: they pass as they are. */
const open = { additionalProperties: true }

const tenant = Type.Object(
  { [tenantHeader]: Type.String({ minLength: 1, maxLength: 128, description: 'Tenant of the call.' }) },
  open,
)
const anyTenant = Type.Partial(tenant)
const session = Type.Object({ id: Type.String({ maxLength: 128 }) })
const named = Type.Object({ name: Type.String({ maxLength: 64 }) })

/** Of a runner that omits `substrates` or `substratesKnown`: an older one, which has none and does not know. Specification 9. */
const WireInfo = Type.Composite([
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

const Hydrate = Type.Object(
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

const RuntimeSlot = Type.Object({
  runtime: Type.String(),
  mode: Type.Union([Type.Literal('sidecar'), Type.Literal('stub'), Type.Literal('unknown')]),
  url: Type.String({ description: 'Empty for a stub and for a sidecar in the same process.' }),
  activeSessions: Type.Integer({ description: 'Across tenants.' }),
})

const ToolSpecs = Type.Array(
  Type.Object({
    name: Type.String(),
    description: Type.String(),
    inputSchema: Type.Record(Type.String(), Type.Unknown()),
  }),
)

/** Agent pools are defined by the conductor: the runner keeps what it is told. */
const PoolInput = Type.Object({ id: Type.Optional(Type.String({ pattern: clientIdPattern })) }, open)
const Pool = Type.Object({ id: Type.String() }, open)

const Attach = Type.Object(
  {
    sessionId: Type.String(),
    runId: Type.String(),
    afterSeq: Type.Integer({ minimum: 0, description: 'The last event that is stored.' }),
    epoch: Type.Integer({ minimum: 0, description: "Of the reader's claim." }),
  },
  open,
)

const of = (group: string) => ({ access: 'network', tags: [group] as readonly string[] })
const inGet = <S extends TSchema>(json: S) => ({ method: 'GET', reply: { status: 200, json } }) as const
const ofSession = { headers: tenant, params: session }
const done = { status: 204 } as const
const runLines = {
  status: 200,
  lines: Type.String(),
  description: 'RunEvents, one a line; the last one is `result` or `error`.',
} as const
const leases = <S extends TObject>(summary: string, item: S) => ({
  ...of('leases'),
  ...inGet(Type.Array(item)),
  summary,
  description: "Of the tenant's sessions, by session id; of all tenants when none is named.",
  headers: anyTenant,
})

export const runnerWire = {
  info: {
    ...of('runner'),
    ...inGet(WireInfo),
    path: '/runner/info',
    summary: 'Say what this runner is',
    description: 'What conductors probe: its hash, what it can run, and whether it is about to stop.',
  },
  runtimes: {
    ...of('runner'),
    ...inGet(Type.Array(RuntimeSlot)),
    path: '/runner/runtimes',
    summary: 'List runtimes',
    description: 'And which sidecar serves each.',
  },
  topology: {
    ...of('runner'),
    ...inGet(RunnerTopology),
    path: '/runner/topology',
    summary: 'Show the process and its sidecars',
    description: 'Probes each sidecar. Slots that share one show the same instances: do not add them up.',
  },

  profiles: {
    ...of('broadcast'),
    ...inGet(Type.Array(Profile)),
    path: '/runner/profiles',
    summary: "List a tenant's profiles on this runner",
    headers: tenant,
  },
  putProfile: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/profiles',
    summary: 'Store a profile on this runner',
    description: 'An older version than the one that is there changes nothing.',
    headers: tenant,
    body: Profile,
    reply: done,
  },
  deleteProfile: {
    ...of('broadcast'),
    method: 'DELETE',
    path: '/runner/profiles/:name',
    summary: 'Delete a profile from this runner',
    description: 'Sessions keep their snapshot of it.',
    headers: tenant,
    params: named,
    reply: done,
    absent: true,
  },
  pools: {
    ...of('broadcast'),
    ...inGet(Type.Array(Pool)),
    path: '/runner/pools',
    summary: "List a tenant's pools on this runner",
    headers: tenant,
  },
  putPool: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/pools',
    summary: 'Store a pool on this runner',
    headers: tenant,
    body: PoolInput,
    reply: { status: 201, json: Pool },
  },
  deletePool: {
    ...of('broadcast'),
    method: 'DELETE',
    path: '/runner/pools/:id',
    summary: 'Delete a pool from this runner',
    ...ofSession,
    reply: done,
    absent: true,
  },
  takeBroadcast: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/broadcast',
    summary: "Take a page of a tenant's changes",
    description:
      'Changes nothing unless this runner has everything up to `after`. The answer says how far it has followed the tenant now; the caller goes on from there.',
    headers: tenant,
    body: BroadcastPage,
    bodyLimit: maxPageBytes,
    reply: { status: 200, json: Type.Object({ revision: Type.Integer() }) },
    absent: true,
  },
  behind: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/broadcast/behind',
    summary: 'Name the tenants this runner is behind with',
    description: 'Those of the given tenants of which this runner has less than the given revision.',
    body: Type.Object({ revisions: BroadcastRevisions }),
    reply: { status: 200, json: Type.Object({ tenants: Type.Array(Type.String()) }) },
    absent: true,
  },

  sessions: {
    ...of('sessions'),
    ...inGet(Type.Array(WireSession)),
    path: '/runner/sessions',
    summary: "List a tenant's sessions on this runner",
    headers: tenant,
  },
  createSession: {
    ...of('sessions'),
    method: 'POST',
    path: '/runner/sessions',
    summary: 'Create a session',
    description:
      'Under an id of this runner. Its tools are those of the profile that the runner has; they never change.',
    headers: tenant,
    body: Type.Object({ profileName }, { additionalProperties: false }),
    reply: { status: 201, json: WireSession },
    errors: { 404: '`unknown_profile`: it was never broadcast.' },
  },
  getSession: {
    ...of('sessions'),
    ...inGet(WireSession),
    path: '/runner/sessions/:id',
    summary: 'Get a session',
    ...ofSession,
    absent: true,
  },
  deleteSession: {
    ...of('sessions'),
    method: 'DELETE',
    path: '/runner/sessions/:id',
    summary: 'Shut a session down',
    description: 'Its MCP endpoint goes with it, and a run under way ends. An unknown session is no error.',
    ...ofSession,
    reply: done,
    absent: true,
  },
  sessionHealth: {
    ...of('sessions'),
    ...inGet(Type.Object({ healthy: Type.Boolean(), error: Type.Optional(Type.String()) })),
    path: '/runner/sessions/:id/health',
    summary: "Check a session's sidecar",
    description: 'Or its sandbox. 200 with `healthy` false and an `error` when it does not answer.',
    ...ofSession,
  },
  hydrate: {
    ...of('sessions'),
    method: 'POST',
    path: '/runner/sessions/hydrate',
    summary: 'Hydrate a session',
    description: 'Changes nothing when the session is here already, unless told to `replace` it.',
    headers: tenant,
    body: Hydrate,
    bodyLimit: maxHydrateBytes,
    reply: done,
    errors: {
      404: '`unknown_profile`, or `unknown_session`: another tenant has a session of this id.',
      502: '`sidecar_lost` or `sidecar_keeps_no_state`: the sidecar did not take the state.',
    },
  },
  unsaved: {
    ...of('sessions'),
    ...inGet(Type.Array(UnsavedSession)),
    path: '/runner/state/unsaved',
    summary: 'List sessions with unsaved state',
    description: 'Of all tenants: resting ones whose conversation changed since it was exported last.',
    absent: true,
  },
  exportState: {
    ...of('sessions'),
    method: 'GET',
    path: '/runner/sessions/:id/state',
    summary: 'Export the state of a session',
    description: 'The bundle as its sidecar gave it out, at most 64 MiB; `X-Runtime-Session-Id` belongs to it.',
    ...ofSession,
    reply: { status: 200, bytes: bundleForms, description: 'The bundle, in the form of its runtime.' },
    errors: {
      404: '`unknown_session`, or `no_state`.',
      500: '`state_export_failed`: the sidecar failed, or the bundle is too large.',
    },
    absent: true,
  },

  execute: {
    ...of('runs'),
    method: 'POST',
    path: '/runner/runs',
    summary: 'Execute a run',
    description:
      'Closing the connection ends the run, or with `keepMs` leaves it to another reader for so long. A stream without `result` or `error` at its end was cut.',
    headers: tenant,
    body: ExecuteRun,
    bodyLimit: maxRunBytes,
    reply: runLines,
    errors: {
      404: '`unknown_session`: it is not in the memory of this runner; hydrate it.',
      409: '`session_busy`, or `attempt_superseded`: a later attempt of this run was begun.',
      503: '`runner_full` or `runner_draining`: nothing was begun; ask another runner.',
    },
  },
  attach: {
    ...of('runs'),
    method: 'POST',
    path: '/runner/runs/attach',
    summary: 'Read on in a run',
    description:
      'That this runner executes, or has executed within its `keepMs`. Its present reader is cut off. Closing the connection leaves the run to another reader.',
    headers: tenant,
    body: Attach,
    reply: runLines,
    errors: {
      404: '`unknown_run`.',
      409: '`attempt_superseded`: its present reader has a higher `epoch`.',
      410: '`run_gap`: what follows `afterSeq` is not kept any more.',
    },
  },
  cancelRun: {
    ...of('runs'),
    method: 'DELETE',
    path: '/runner/runs/:runId',
    summary: 'Cancel a run',
    description:
      'Its stream ends with an `error` event `cancelled`. An unknown run, or one that has ended, is no error.',
    headers: tenant,
    params: Type.Object({ runId: Type.String({ maxLength: 128 }) }),
    reply: done,
    absent: true,
  },

  toolSpecs: {
    ...of('tools'),
    ...inGet(ToolSpecs),
    path: '/runner/toolkit/specs',
    summary: 'List the tools of this runner',
    description: 'Every platform tool, whatever profiles allow.',
  },
  sessionToolSpecs: {
    ...of('tools'),
    ...inGet(ToolSpecs),
    path: '/runner/sessions/:id/toolkit/specs',
    summary: 'List the tools of a session',
    description: 'What its profile allowed when the session was created.',
    ...ofSession,
  },
  invokeTool: {
    ...of('tools'),
    method: 'POST',
    path: '/runner/sessions/:id/toolkit/invoke',
    summary: 'Invoke a tool',
    description: "A tool's own failure is 200 with `result.ok` false.",
    ...ofSession,
    body: Type.Object(
      { name: Type.String({ maxLength: 128 }), input: Type.Optional(Type.Unknown()) },
      { additionalProperties: false },
    ),
    reply: {
      status: 200,
      json: Type.Object({ result: Type.Object({ ok: Type.Boolean(), content: Type.String() }) }),
    },
    errors: { 403: '`tool_not_allowed`: it is not in the toolkit of the session.' },
  },
  delegations: {
    ...of('tools'),
    ...inGet(Type.Array(Delegation)),
    path: '/runner/sessions/:id/delegations',
    summary: 'Take the delegations of a session',
    description: 'Those that wait. They count as taken from then on, and wait until they are answered.',
    ...ofSession,
  },
  answerDelegation: {
    ...of('tools'),
    method: 'POST',
    path: '/runner/sessions/:id/delegations',
    summary: 'Answer a delegation',
    description: 'One that nobody waits for any more is no error.',
    ...ofSession,
    body: Type.Composite([Type.Object({ id: Type.String() }), DelegationAnswer]),
    reply: done,
  },

  vfsLeases: { ...leases('List VirtualFS leases', VfsLease), path: '/runner/vfs/leases' },
  workerLeases: {
    ...leases('List sandbox workers', WorkerLease),
    path: '/runner/worker/leases',
    errors: { 502: 'A substrate could not be read.' },
  },
  vfsLease: {
    ...of('leases'),
    ...inGet(VfsLease),
    path: '/runner/sessions/:id/vfs-lease',
    summary: 'Show the VirtualFS lease of a session',
    ...ofSession,
    errors: { 404: '`no vfs session`.' },
    absent: true,
  },
  workerLease: {
    ...of('leases'),
    ...inGet(WorkerLease),
    path: '/runner/sessions/:id/worker',
    summary: 'Show the sandbox worker of a session',
    ...ofSession,
    errors: { 404: '`no sandbox worker`.', 502: 'Its substrate could not be read.' },
    absent: true,
  },
  invalidateSandbox: {
    ...of('leases'),
    method: 'POST',
    path: '/runner/sandbox-events/invalidate',
    summary: 'Forget what is known of a sandbox',
    description: 'Its provider said that it changed. 0 is normal: another runner has it.',
    body: Type.Object(
      { provider: Type.String({ maxLength: 64 }), sandboxId: Type.String({ maxLength: 128 }) },
      { additionalProperties: false },
    ),
    reply: {
      status: 200,
      json: Type.Object({ invalidated: Type.Integer({ description: 'How many cached states were dropped.' }) }),
    },
    absent: true,
  },
} as const satisfies Wire
