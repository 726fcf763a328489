import type { FastifyRequest } from 'fastify'
import { type AppError, errorTable } from './errors.ts'
import type { Kv } from './kv.ts'
import type { App } from '../http/app.ts'
import { capability } from '../plugin.ts'

/** One limit of a tenant. */
interface LimitKind {
  readonly default: number
  readonly unit:
    | 'requests'
    | 'runs'
    | 'streams'
    | 'sessions'
    | 'profiles'
    | 'skills'
    | 'sandboxes'
    | 'bytes'
    | 'deliveries'
    | 'calls'
    | 'levels'
    | 'keys'
    | 'secrets'
    | 'servers'
    | 'objects'
    | 'memories'
    | 'files'
    | 'connections'
    | 'budgets'
    | 'workflows'
    | 'nodes'
    | 'schedules'
    | 'approvals'
  /**
   * How a tenant gets below the limit again. `later`: the use falls by itself, and the refusal is 429. `held`: the tenant must give something up,
   * and the refusal is 409.
   */
  readonly relief: 'later' | 'held'
  readonly about: string
  /**
   * Of a limit on work in a minute: how much of it a tenant has in any case, unless its limit is lower. A process that is short of time gives no more
   * to whoever does more there than others.
   */
  readonly least?: number
}

const kibi = 1024
const mebi = 1024 * kibi
const gibi = 1024 * mebi

/** The limits of a tenant: their names in role files and `/api/limits`, and their defaults. The plugin that owns a resource enforces its limit. */
export const limitKinds = {
  readsPerMinute: {
    default: 60_000,
    least: 600,
    unit: 'requests',
    relief: 'later',
    about: 'Requests of the API that only read.',
  },
  writesPerMinute: {
    default: 30_000,
    least: 300,
    unit: 'requests',
    relief: 'later',
    about: 'Requests of the API that start runs or change something.',
  },
  chatsPerMinute: {
    default: 60_000,
    least: 1_500,
    unit: 'requests',
    relief: 'later',
    about: 'Messages to published agents, with all keys together.',
  },
  transferBytesPerMinute: {
    default: 4 * gibi,
    least: 64 * mebi,
    unit: 'bytes',
    relief: 'later',
    about:
      'Large requests, and files that it sends and fetches, in each process; beyond that they wait for their turn.',
  },
  runningRuns: { default: 500, unit: 'runs', relief: 'later', about: 'Concurrent runs, on all conductors.' },
  queuedRuns: {
    default: 2_000,
    unit: 'runs',
    relief: 'later',
    about: 'Runs that wait for their sessions, for a slot, or for room for their attachments.',
  },
  openStreams: {
    default: 1_000,
    unit: 'streams',
    relief: 'later',
    about: 'Concurrent streams of events, in each process.',
  },
  openAnswers: {
    default: 1_000,
    unit: 'requests',
    relief: 'later',
    about: 'Requests whose answer is being made or is not read yet, in each process, without streams of events.',
  },
  answerBytes: {
    default: 256 * mebi,
    unit: 'bytes',
    relief: 'later',
    about:
      'Answers that are not read yet, in the memory of each process, without small ones and those that are streamed.',
  },
  sessions: { default: 1_000_000, unit: 'sessions', relief: 'held', about: 'Sessions that are not shut down.' },
  attachmentBytes: {
    default: 256 * mebi,
    unit: 'bytes',
    relief: 'later',
    about: 'Attachments of executing runs, in the memory of each conductor and of each runner.',
  },
  sandboxes: {
    default: 100,
    unit: 'sandboxes',
    relief: 'later',
    about: 'Sandboxes of its sessions on each runner, including paused ones.',
  },
  stateBytes: {
    default: 512 * mebi,
    unit: 'bytes',
    relief: 'later',
    about: 'Conversations and profiles of its sessions, in the memory of each runner.',
  },
  workspaceBytes: {
    default: 20 * gibi,
    unit: 'bytes',
    relief: 'held',
    about: 'Files in the sandboxes of its sessions on each runner, if their provider can measure them.',
  },
  profiles: { default: 1_000, unit: 'profiles', relief: 'held', about: 'Profiles.' },
  profileBytes: { default: 256 * kibi, unit: 'bytes', relief: 'held', about: 'The size of one profile, as JSON.' },
  skills: { default: 1_000, unit: 'skills', relief: 'held', about: 'Its own skills, without those of the platform.' },
  skillBytes: { default: 8 * mebi, unit: 'bytes', relief: 'held', about: 'The files of one skill together.' },
  eventLogBytesPerDay: {
    default: 10 * gibi,
    unit: 'bytes',
    relief: 'later',
    about: 'Bytes that its runs write to their event logs in a day of UTC.',
  },
  storedBytes: {
    default: 100 * gibi,
    unit: 'bytes',
    relief: 'held',
    about: 'Its data in the database: event logs, prompts, answers, saved state, and profiles with their versions.',
  },
  webhookDeliveriesPerMinute: {
    default: 600,
    unit: 'deliveries',
    relief: 'later',
    about: 'Attempts to deliver webhooks, from all conductors together; further ones wait.',
  },
  toolCallsPerMinute: {
    default: 30_000,
    least: 600,
    unit: 'calls',
    relief: 'later',
    about:
      'Tool calls of its agents, on each runner, and at the endpoint of its MCP catalog, on each conductor; further ones wait for their turn.',
  },
  delegatedRuns: {
    default: 200,
    unit: 'runs',
    relief: 'held',
    about: 'Runs that one run may start by delegation, including those of its children.',
  },
  delegationDepth: { default: 3, unit: 'levels', relief: 'held', about: 'How deep delegations may nest.' },
  delegatedAtOnce: { default: 32, unit: 'runs', relief: 'later', about: 'Concurrent runs of one tree of delegations.' },
  keysPerMember: {
    default: 10,
    unit: 'keys',
    relief: 'held',
    about: 'Live keys below the key of a member: those that it issued, and those that these issued.',
  },
  secrets: { default: 1_000, unit: 'secrets', relief: 'held', about: 'Secrets.' },
  mcpEntries: { default: 500, unit: 'servers', relief: 'held', about: 'Entries of its MCP catalog.' },
  mcpEntryBytes: {
    default: 32 * kibi,
    unit: 'bytes',
    relief: 'held',
    about: 'The size of one entry of the MCP catalog, as JSON.',
  },
  appConnections: {
    default: 10_000,
    unit: 'connections',
    relief: 'held',
    about: 'Accounts in apps, its own and those of its end users; ended accounts count for 90 days.',
  },
  secretBytes: { default: 64 * kibi, unit: 'bytes', relief: 'held', about: 'The size of the value of one secret.' },
  budgets: { default: 200, unit: 'budgets', relief: 'held', about: 'Budgets of billing.' },
  workflowDefinitions: { default: 1_000, unit: 'workflows', relief: 'held', about: 'Workflow definitions.' },
  workflowRuns: {
    default: 1_000,
    unit: 'runs',
    relief: 'later',
    about: 'Workflow runs that are running or paused, without their children.',
  },
  pendingWorkflowRuns: { default: 2_000, unit: 'runs', relief: 'held', about: 'Workflow runs not started yet.' },
  workflowNodes: {
    default: 20_000,
    unit: 'nodes',
    relief: 'held',
    about: 'Nodes of one workflow run, including parts of maps and loops.',
  },
  workflowCalls: {
    default: 1_000,
    unit: 'calls',
    relief: 'later',
    about: 'Concurrent calls of workflow nodes, in each process; further ones wait.',
  },
  openApprovals: {
    default: 1_000,
    unit: 'approvals',
    relief: 'later',
    about: 'Calls of tools and nodes of workflows that wait for people.',
  },
  workflowSchedules: { default: 200, unit: 'schedules', relief: 'held', about: 'Schedules.' },
  objects: { default: 100_000, unit: 'objects', relief: 'held', about: 'Objects in the object store.' },
  objectBytes: { default: 10 * gibi, unit: 'bytes', relief: 'held', about: 'Its objects together.' },
  vfsBytes: {
    default: 10 * gibi,
    unit: 'bytes',
    relief: 'held',
    about: 'Scratch spaces and copy-on-write layers of its sessions on the VirtualFS server.',
  },
  vfsEntries: {
    default: 200_000,
    unit: 'files',
    relief: 'held',
    about: 'Files in scratch spaces and copy-on-write layers of its sessions on the VirtualFS server.',
  },
  vfsSessions: {
    default: 10_000,
    unit: 'sessions',
    relief: 'held',
    about: 'Sessions with a lease of the VirtualFS server.',
  },
  memories: { default: 1_000_000, unit: 'memories', relief: 'held', about: 'Memories, including superseded ones.' },
  memoryBytes: { default: 2 * gibi, unit: 'bytes', relief: 'held', about: 'The texts of its memories together.' },
} as const satisfies Readonly<Record<string, LimitKind>>

export type LimitName = keyof typeof limitKinds
/** The limits of requests per minute. */
export type RequestLimit = 'readsPerMinute' | 'writesPerMinute' | 'chatsPerMinute'
export const limitNames = Object.keys(limitKinds) as readonly LimitName[]
export type Limits = Readonly<Record<LimitName, number>>

/** The largest value of a limit, because PostgreSQL counts most of them as integers. */
export const largestOf = (name: LimitName): number =>
  limitKinds[name].unit === 'bytes' ? Number.MAX_SAFE_INTEGER : 1_000_000_000

/** How much of a limit on work in a minute a tenant has in any case, unless its limit is lower. */
export const leastOf = (name: LimitName): number => {
  const kind: LimitKind = limitKinds[name]
  return kind.least ?? 0
}

/** The default limits. */
export const defaultLimits: Limits = Object.fromEntries(
  limitNames.map((name) => [name, limitKinds[name].default]),
) as Record<LimitName, number>

export const limitErrors = errorTable('limits', {
  limitReached: {
    status: 429,
    retry: 'later',
    about: 'The tenant has reached a limit; `limit` names it, `max` is its value. Waiting helps.',
  },
  limitExceeded: {
    status: 409,
    about:
      'The tenant has, or would have, more of something than its limit; `limit` names the limit, `max` is its value.',
  },
})

export const isOverLimit = ({ code }: AppError): boolean =>
  code === limitErrors.limitReached.row.code || code === limitErrors.limitExceeded.row.code

/** The refusal of a tenant that exceeds a limit. `now`: what the tenant has of it, if that is less than its limit. */
export function overLimit(limit: LimitName, max: number, retryAfterSeconds?: number, now = max): AppError {
  const { relief, about } = limitKinds[limit]
  const crowded =
    now < max
      ? `It is ${now} at present, because this server is short of time and the tenant does more than others. `
      : ''
  const message = `The limit ${limit} of this tenant is ${max}. ${crowded}${about} See GET /api/limits.`
  const detail = { limit, max }
  if (relief === 'held') return limitErrors.limitExceeded({ message, detail })
  const headers = { 'retry-after': String(retryAfterSeconds ?? 1) }
  return limitErrors.limitReached({ message, detail, headers })
}

/** The limits of a tenant that differ from the role file. */
export type OwnLimits = Partial<Limits>

/** The requests of a guarded scope. */
export interface GuardedRequests {
  /** The tenant of a request; called after the guard. */
  tenantOf(request: FastifyRequest): string
  /** The limit for requests that do more than read. Requests that only read count for `readsPerMinute`. */
  readonly writes: RequestLimit
  /** Counts requests in this process alone. Absent: all processes count together. */
  readonly alone?: Kv['hit']
}

/** The stored bytes of each tenant in the database. Writes add to them, and they are counted again every night. */
export interface StoredBytes {
  /** Adds bytes. The database is updated in the background. */
  add(tenantId: string, bytes: number): void
  /** True when the tenant has reached the limit. */
  isFull(tenantId: string): boolean
  /**
   * Throws 409 `limit_exceeded` when the tenant has reached the limit. `few`: a full tenant may make a few small writes, too, for each such name.
   */
  admit(tenantId: string, few?: string): void
}

export type CountUse = (tenantId: string) => Promise<number | undefined> | number | undefined

/**
 * Takes a tenant's next turn, or as many as its work costs, and resolves when the first of them has come, however long that takes; rejects when `signal`
 * aborts before.
 */
export type WaitForTurn = (tenantId: string, signal?: AbortSignal, turns?: number) => Promise<void>

/** The limits of each tenant. A change by an operator reaches every process within seconds. */
export interface TenantLimits {
  /** The limits in the role file. */
  readonly defaults: Limits
  of(tenantId: string): Limits
  ownOf(tenantId: string): OwnLimits
  /** Replaces limits of a tenant; null restores the role file's. False: there is no such tenant, or no database. */
  change(tenantId: string, wanted: Readonly<Partial<Record<LimitName, number | null>>>): Promise<boolean>
  /**
   * Resolves when it is the turn of work that costs as much as `weight` requests of a kind, in addition to its own request. Rejects with 429
   * `limit_reached` when the tenant's requests already wait as long as they may. With `patient`, which is for background work, it rejects only when
   * no turns exist at all.
   */
  turn(tenantId: string, kind: RequestLimit, weight: number, options?: { readonly patient?: boolean }): Promise<void>
  /**
   * Says that this process works for the tenant where nobody takes a turn, as at the start of a run that another process sends. Tenants that take more
   * turns than their neighbours give way while the process is short of time.
   */
  works(tenantId: string): void
  /** Turns of work that no request waits for, at the pace of the writes of its tenant and beside them: `atOnce` pass at once after a pause. */
  pace(atOnce: number): WaitForTurn
  /**
   * The same for work that has no end, such as schedules: turns are never ahead of the average. The function takes a tenant's next turn, and returns in
   * how many milliseconds it comes.
   */
  steady(atOnce: number): (tenantId: string) => number
  /** Whether this process knows that a request would be refused now. `writes`: see `GuardedRequests`. The call does no I/O and counts nothing. */
  isSpent(tenantId: string, method: string, writes: RequestLimit): boolean
  /** The bytes of a file, no faster than the tenant may transfer. */
  paced(tenantId: string, body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>
  /**
   * Counts bytes of an answer that this process holds, until the returned function is called. Returns the error when others of the tenant already
   * hold as much as they may together; a tenant may always have one. Answers that are sent in one piece are counted by `guard`.
   */
  holdAnswer(tenantId: string, bytes: number): (() => void) | AppError
  /** Enforces `storedBytes`. */
  readonly stored: StoredBytes
  /** Enforces the limits on requests and open streams in a scope. Call it after the scope's guard and before its routes. */
  guard(app: App, guarded: GuardedRequests): void
  /** Registers how much of a limit a tenant uses. A count of undefined means that it is unknown. */
  uses(limit: LimitName, count: CountUse): void
  /** The use of each counted limit by a tenant. */
  usedBy(tenantId: string): Promise<OwnLimits>
}
export const TenantLimits = capability<TenantLimits>('core.tenant-limits')
