import { type TObject, type TSchema, Type } from '@sinclair/typebox'
import { BroadcastPage, BroadcastRevisions } from '../broadcast.ts'
import { Profile, profileName } from '../profiles.ts'
import { ExecuteRun, RunnerTopology, RunnerUsage, UnsavedSession } from '../runner.ts'
import { limitErrors } from '../limits.ts'
import { runnerErrors, sidecarLinkErrors } from '../runner-errors.ts'
import { vfsErrors } from '../vfs.ts'
import { bundleForms } from './sidecar.ts'
import type { Wire } from './route.ts'
import * as bodies from './runner-bodies.ts'
import { skillRoutes, toolRoutes } from './runner-tools.ts'

export { decodeSessionStatus, encodeSessionStatus, maxStateBytes, tenantHeader } from './runner-bodies.ts'

// The requests of conductors to a runner. Specification 4.22: the network is trusted, so the tenant of a call is a plain header.

const of = (group: string) => ({ access: 'network', tags: [group] as readonly string[] })
const inGet = <S extends TSchema>(json: S) => ({ method: 'GET', reply: { status: 200, json } }) as const
const ofSession = { headers: bodies.tenant, params: bodies.session }
const done = { status: 204 } as const
const leases = <S extends TObject>(summary: string, item: S) => ({
  ...of('leases'),
  ...inGet(Type.Array(item)),
  summary,
  description: "Of the tenant's sessions, by session id; of all tenants when none is named.",
  headers: bodies.anyTenant,
})

export const runnerWire = {
  info: {
    ...of('runner'),
    ...inGet(bodies.WireInfo),
    path: '/runner/info',
    summary: 'Say what this runner is',
    description: 'What conductors probe: its hash, what it can run, and whether it is about to stop.',
  },
  runtimes: {
    ...of('runner'),
    ...inGet(Type.Array(bodies.RuntimeSlot)),
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

  usage: {
    ...of('runner'),
    ...inGet(RunnerUsage),
    path: '/runner/usage',
    summary: 'Show the use of a tenant',
    description: 'For the limits that apply to each runner.',
    headers: bodies.tenant,
    absent: true,
  },

  profiles: {
    ...of('broadcast'),
    ...inGet(Type.Array(Profile)),
    path: '/runner/profiles',
    summary: "List a tenant's profiles on this runner",
    headers: bodies.tenant,
  },
  putProfile: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/profiles',
    summary: 'Store a profile on this runner',
    description: 'A version older than the stored one changes nothing.',
    headers: bodies.tenant,
    body: Profile,
    reply: done,
  },
  deleteProfile: {
    ...of('broadcast'),
    method: 'DELETE',
    path: '/runner/profiles/:name',
    summary: 'Delete a profile from this runner',
    description: 'Sessions keep their snapshot.',
    headers: bodies.tenant,
    params: bodies.named,
    reply: done,
    absent: true,
  },
  pools: {
    ...of('broadcast'),
    ...inGet(Type.Array(bodies.RunnerPool)),
    path: '/runner/pools',
    summary: "List a tenant's pools on this runner",
    headers: bodies.tenant,
  },
  putPool: {
    ...of('broadcast'),
    method: 'POST',
    path: '/runner/pools',
    summary: 'Store a pool on this runner',
    headers: bodies.tenant,
    body: bodies.RunnerPoolInput,
    reply: { status: 201, json: bodies.RunnerPool },
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
      'Changes nothing unless this runner has everything up to `after`. The answer says which revision it has now; the caller continues from there.',
    headers: bodies.tenant,
    body: BroadcastPage,
    bodyLimit: bodies.maxPageBytes,
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
    ...inGet(Type.Array(bodies.WireSession)),
    path: '/runner/sessions',
    summary: "List a tenant's sessions on this runner",
    headers: bodies.tenant,
  },
  createSession: {
    ...of('sessions'),
    method: 'POST',
    path: '/runner/sessions',
    summary: 'Create a session',
    description:
      'Under an id of this runner. Its tools are those of the profile that the runner has; they never change.',
    headers: bodies.tenant,
    body: Type.Object({ profileName }, { additionalProperties: false }),
    reply: { status: 201, json: bodies.WireSession },
    errors: [runnerErrors.unknownProfile, limitErrors.limitReached],
  },
  getSession: {
    ...of('sessions'),
    ...inGet(bodies.WireSession),
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
    description:
      'This also ends its MCP endpoint and its running run. It is answered when its files on the VirtualFS server are gone; those of a running run go after its end. An unknown session is no error.',
    ...ofSession,
    reply: done,
    errors: [vfsErrors.vfsUpstreamUnavailable],
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
    description: 'Changes nothing if the session is already here, except with `replace`.',
    headers: bodies.tenant,
    body: bodies.Hydrate,
    bodyLimit: bodies.maxHydrateBytes,
    reply: done,
    errors: [
      runnerErrors.unknownProfile,
      runnerErrors.unknownSession,
      limitErrors.limitReached,
      sidecarLinkErrors.sidecarLost,
      sidecarLinkErrors.sidecarKeepsNoState,
    ],
  },
  unsaved: {
    ...of('sessions'),
    ...inGet(Type.Array(UnsavedSession)),
    path: '/runner/state/unsaved',
    summary: 'List sessions with unsaved state',
    description: 'Of all tenants: idle sessions whose conversation has changed since its last export.',
    absent: true,
  },
  exportState: {
    ...of('sessions'),
    method: 'GET',
    path: '/runner/sessions/:id/state',
    summary: 'Export the state of a session',
    description: 'The bundle as its sidecar exported it, at most 64 MiB; `X-Runtime-Session-Id` belongs to it.',
    ...ofSession,
    reply: { status: 200, bytes: bundleForms, description: 'The bundle, in the form of its runtime.' },
    errors: [runnerErrors.unknownSession, runnerErrors.noState, runnerErrors.stateExportFailed],
    absent: true,
  },

  ...skillRoutes,
  execute: {
    ...of('runs'),
    method: 'POST',
    path: '/runner/runs',
    summary: 'Execute a run',
    description:
      'Closing the connection ends the run, or with `keepMs` leaves it to another reader for so long. A stream without `result` or `error` at its end was cut.',
    headers: bodies.tenant,
    body: ExecuteRun,
    bodyLimit: bodies.maxRunBytes,
    reply: bodies.runLines,
    errors: [
      runnerErrors.hostNotAllowed,
      runnerErrors.unknownSession,
      runnerErrors.sessionBusy,
      runnerErrors.skillsMissing,
      runnerErrors.linksUnread,
      runnerErrors.attemptSuperseded,
      limitErrors.limitReached,
      runnerErrors.runnerFull,
      runnerErrors.runnerDraining,
    ],
  },
  attach: {
    ...of('runs'),
    method: 'POST',
    path: '/runner/runs/attach',
    summary: 'Read on in a run',
    description:
      'Continues to read a run that this runner executes, or has executed within its `keepMs`. The current reader is disconnected. Closing the connection leaves the run to another reader.',
    headers: bodies.tenant,
    body: bodies.Attach,
    reply: bodies.runLines,
    errors: [runnerErrors.unknownRun, runnerErrors.attemptSuperseded, runnerErrors.runGap],
  },
  cancelRun: {
    ...of('runs'),
    method: 'DELETE',
    path: '/runner/runs/:runId',
    summary: 'Cancel a run',
    description:
      'Its stream ends with an `error` event: `timeout` or `budget_exceeded` for these reasons, else `cancelled`. An unknown run, or one that has ended, is no error.',
    headers: bodies.tenant,
    params: Type.Object({ runId: Type.String({ maxLength: 128 }) }),
    query: Type.Object({ reason: Type.Optional(Type.String({ description: '`cancelled` by default.' })) }),
    reply: done,
    absent: true,
  },

  ...toolRoutes,

  vfsLeases: { ...leases('List VirtualFS leases', bodies.VfsLease), path: '/runner/vfs/leases' },
  workerLeases: {
    ...leases('List sandbox workers', bodies.WorkerLease),
    path: '/runner/worker/leases',
    errors: [runnerErrors.upstream],
  },
  vfsLease: {
    ...of('leases'),
    ...inGet(bodies.VfsLease),
    path: '/runner/sessions/:id/vfs-lease',
    summary: 'Show the VirtualFS lease of a session',
    ...ofSession,
    errors: [runnerErrors.noVfsSession, runnerErrors.upstream],
    absent: true,
  },
  workerLease: {
    ...of('leases'),
    ...inGet(bodies.WorkerLease),
    path: '/runner/sessions/:id/worker',
    summary: 'Show the sandbox worker of a session',
    ...ofSession,
    errors: [runnerErrors.noSandboxWorker, runnerErrors.upstream],
    absent: true,
  },
  invalidateSandbox: {
    ...of('leases'),
    method: 'POST',
    path: '/runner/sandbox-events/invalidate',
    summary: 'Forget the known state of a sandbox',
    description: 'Its provider reported a change. 0 is normal: another runner has it.',
    body: bodies.InvalidateSandbox,
    reply: { status: 200, json: bodies.Invalidated },
    absent: true,
  },
} as const satisfies Wire
