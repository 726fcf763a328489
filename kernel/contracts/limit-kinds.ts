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
