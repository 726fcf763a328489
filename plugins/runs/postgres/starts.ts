import { unavailable } from '#kernel'
import { endUserOf } from '#contracts/apps'
import { type Database, sqlState, type Statement, violatedConstraint } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import type { DurableSession, RunStore, StartOutcome, StartRun } from '#contracts/run-store'
import { attachmentBytesOf, promptFieldsOf, promptInfoOf } from '#contracts/prompt'
import { type Charges, type Holding, holding, holdValues } from './charges.ts'
import { handedOver } from './ends.ts'
import type { Instance } from './instance.ts'
import type { LostClaims } from './lost-claims.ts'
import type { Orphans } from './orphans.ts'
import { parked } from './parking.ts'
import {
  type DurableRow,
  durableColumns,
  prepared,
  type RunRow,
  runById,
  storable,
  storableOrNull,
  toDurable,
  toRun,
} from './rows.ts'

// Refuses a claim to a process that was declared dead and has not noticed yet, because no sweep would find the run again.
const ownerLives = 'EXISTS (SELECT 1 FROM instances WHERE id = :owner AND NOT dead)'
const isFresh = `(:revision::bigint IS NULL
  OR EXISTS (SELECT 1 FROM tenants WHERE id = :tenant AND broadcast_revision = :revision AND deleted_at IS NULL))`
// A public run that was given up as lost before its run was stored stays lost.
const isOpen = `NOT EXISTS (SELECT 1 FROM public_runs WHERE tenant_id = :tenant AND id = :publicRun AND status <> 'dispatching')`

// A gateway may let a caller in from memory, so the start checks that the key is live and its agent has not changed.
const isAdmitted = `(:key::text IS NULL OR EXISTS (
  SELECT 1 FROM published_agent_keys k
  JOIN published_agents a ON a.tenant_id = k.tenant_id AND a.id = k.published_id
  JOIN tenants t ON t.id = k.tenant_id AND t.deleted_at IS NULL
  WHERE k.tenant_id = :tenant AND k.id = :key AND k.revoked_at IS NULL
    AND (k.expires_at IS NULL OR k.expires_at > now()) AND a.xmin::text = :agentRevision))`
const mayBegin = `${isOpen} AND ${isAdmitted}`

/** Inserts the user's message of a chat, selected `FROM` the rows that prove that its run starts. */
const chatFrom = (begun: string): string => `
  public AS (
    INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, status, end_user_id)
    SELECT :tenant, :publicRun, :published, :conversation, :run, 'running', :endUser FROM ${begun}
    -- A gateway that did not learn whether the run was taken has noted it.
    ON CONFLICT (tenant_id, id) DO UPDATE SET status = 'running' WHERE public_runs.status = 'dispatching'
  ), message AS (
    INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, attachments)
    SELECT :tenant, :conversation, :publicRun, 'user', :prompt, :attachments::json FROM ${begun}
    ON CONFLICT DO NOTHING
  )`

const columns = `tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, ordinal, webhook_url, input,
  input_info, parent, public_run, end_user_id`

// Insert the run first: if its id is taken, nothing else is inserted and no session is left behind.
const newRun = (held: string, where: string, from = ''): string => `
  run AS (
    INSERT INTO runs (${columns})
    SELECT :tenant, :run, :session, :profile, 'running', :prompt, :metadata::json, :owner, 1, 1, :webhook, :input::json,
      :inputInfo::json, :parent::jsonb, :publicRun, :person
    ${from} WHERE ${ownerLives} AND ${isFresh} ${where}
    ON CONFLICT DO NOTHING RETURNING id, started_at${held}
  )`
// Every run rewrites the session row, so it keeps only the beginning of the prompt. The run keeps the whole prompt.
const preview = 'left(:prompt, 4000)'
// The session is as old as its first run.
const newSession = (held: string, contextTokens = 'NULL::bigint'): string => `
  INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, last_prompt, run_count,
                        claim_owner, claim_run, claim_epoch, created_at, last_used_at, context_tokens)
  SELECT :tenant, :session, :profile, :runtime, :snapshot::jsonb, 'running', ${preview}, 1, :owner, :run, 1, started_at, started_at,
    ${contextTokens}
  FROM run
  RETURNING id, context_tokens::float8 AS "contextTokens"${held}`

const startNew = ({ held, told }: Holding): string => `WITH ${newRun(held(), '')} ${newSession(told)}`

const startChat = ({ held, told }: Holding): string => `
   WITH ${newRun(held(), `AND ${mayBegin}`)},
   conversation AS (
     INSERT INTO conversations (tenant_id, id, published_id, end_user_id, session_id)
     SELECT :tenant, :conversation, :published, :endUser, :session FROM run
     ON CONFLICT (tenant_id, id) DO UPDATE SET session_id = excluded.session_id WHERE conversations.session_id IS NULL
   ), ${chatFrom('run')} ${newSession(told)}`

// A session that goes on with the conversation of another has as much to read.
const contextOfFormer = '(SELECT context_tokens FROM sessions WHERE tenant_id = :tenant AND id = :insteadOf)'

/** When two continuations find the session gone, only one of them starts a new one. */
const startAnew = ({ held, told }: Holding): string => `
   WITH conversation AS (
     UPDATE conversations SET session_id = :session
     WHERE tenant_id = :tenant AND id = :conversation AND published_id = :published
       AND session_id IS NOT DISTINCT FROM :insteadOf::text AND ${ownerLives} AND ${isFresh} AND ${mayBegin}
     RETURNING id
   ), ${newRun(held(), '', 'FROM conversation')}, ${chatFrom('run')} ${newSession(told, contextOfFormer)}`

// A session with queued runs is as busy as one that executes a run, so that a later run cannot overtake them. The queue table is nearly always
// empty.
const claiming = (held: string, session: string, more = ''): string => `
  claimed AS (
    UPDATE sessions
    SET status = 'running', claim_owner = :owner, claim_run = :run, claim_epoch = claim_epoch + 1,
        last_used_at = now(), last_prompt = ${preview}, run_count = run_count + 1
    WHERE tenant_id = :tenant AND id = ${session} AND profile = :profile AND status IN ('idle', 'errored')
      AND NOT EXISTS (SELECT 1 FROM runs WHERE tenant_id = :tenant AND id = :run) AND ${ownerLives} ${more}
      AND NOT EXISTS (SELECT 1 FROM run_queue WHERE tenant_id = :tenant AND session_id = ${session})
    RETURNING id, profile_snapshot, status, runtime_session_id, state_rev, runner_hash, context_tokens, claim_epoch,
      run_count
  ), run AS (
    INSERT INTO runs (${columns})
    SELECT :tenant, :run, id, :profile, 'running', :prompt, :metadata::json, :owner, claim_epoch, run_count, :webhook,
      :input::json, :inputInfo::json, :parent::jsonb, :publicRun, :person
    FROM claimed ${held && `RETURNING id${held}`}
  )`
const claimedSession = (held: string): string => `SELECT ${durableColumns}${held} FROM claimed`
const snapshot = '(SELECT profile_snapshot FROM claimed)'

const startIn = ({ held, told }: Holding): string =>
  `WITH ${claiming(held(snapshot), ':session')} ${claimedSession(told)}`

const continueChat = ({ held, told }: Holding): string => `
   WITH conversation AS MATERIALIZED (
     SELECT session_id FROM conversations WHERE tenant_id = :tenant AND id = :conversation AND published_id = :published
   ), ${claiming(held(snapshot), '(SELECT session_id FROM conversation)', `AND ${mayBegin}`)}, ${chatFrom('claimed')}
   ${claimedSession(told)}`

/** The start statements, once with billing and once without. */
const statements = (kind: string, text: (holding: Holding) => string) => ({
  free: prepared(`run-${kind}`, text(holding.none)),
  billed: prepared(`run-${kind}-billed`, text(holding.some)),
})
const starting = {
  new: statements('start-new', startNew),
  chat: statements('start-chat', startChat),
  anew: statements('start-anew', startAnew),
  in: statements('start-claim', startIn),
  continued: statements('continue-chat', continueChat),
}

const findConversation = prepared(
  'run-find-conversation',
  'SELECT session_id FROM conversations WHERE tenant_id = :tenant AND id = :conversation AND published_id = :published',
)
const admitted = prepared('run-start-admitted', `SELECT ${isAdmitted} AS admitted`)
const whyNot = prepared(
  'run-start-why-not',
  `SELECT s.profile, s.status, s.claim_owner, i.id IS NULL OR i.dead OR i.lease_until < now() AS orphaned,
     EXISTS (SELECT 1 FROM run_queue q WHERE q.tenant_id = :tenant AND q.session_id = :session) AS waiting
   FROM sessions s LEFT JOIN instances i ON i.id = s.claim_owner
   WHERE s.tenant_id = :tenant AND s.id = :session`,
)
const freshness = prepared('run-start-fresh', `SELECT ${isFresh} AS fresh FROM tenants WHERE id = :tenant`)

/** The values of a new row of `runs`. */
export function runValues({ tenantId, runId, sessionId, task }: Omit<StartRun, 'create'>) {
  const input = task.attachments || task.responseFormat ? promptFieldsOf(task) : undefined
  return {
    tenant: tenantId,
    run: runId,
    session: sessionId,
    profile: task.profile,
    prompt: storable(task.prompt),
    metadata: task.metadata && JSON.stringify(task.metadata),
    webhook: task.webhook?.url,
    input: input && JSON.stringify(input),
    inputInfo: input && JSON.stringify(promptInfoOf(task)),
    person: storableOrNull(task.chat?.endUserId ?? endUserOf(task.metadata)),
  }
}

/** The statement that starts a run, and the whole transaction with it. */
function startStatement(run: StartRun, { instance, charges: { billing }, snapshots }: StartDeps): Statement {
  const { task, create } = run
  const { chat } = task
  const row = runValues(run)
  const values = {
    ...row,
    owner: instance.id,
    ...(billing && holdValues(billing, run)),
    parent: task.parent && JSON.stringify(task.parent),
    runtime: create?.profile.runtime,
    snapshot: create && snapshotOf(create.profile, snapshots),
    revision: create?.revision,
    insteadOf: create?.insteadOf,
    publicRun: chat?.publicRunId,
    conversation: chat?.conversationId,
    published: chat?.publishedId,
    endUser: chat?.endUserId,
    key: chat?.admission?.keyId,
    agentRevision: chat?.admission?.revision,
    // A conversation shows only the names of attachments; their contents belong to the run.
    attachments:
      task.attachments?.length && chat
        ? JSON.stringify(task.attachments.map(({ name, mediaType }) => ({ name, mediaType })))
        : undefined,
  }
  const kind = create ? (!chat ? 'new' : chat.continued ? 'anew' : 'chat') : chat ? 'continued' : 'in'
  return starting[kind][billing ? 'billed' : 'free'](values)
}

type Snapshots = WeakMap<Profile, string>
/** Caches the serialized profile: profiles are shared objects, and there may be many starts of one. */
function snapshotOf(profile: Profile, snapshots: Snapshots): string {
  const known = snapshots.get(profile)
  if (known !== undefined) return known
  const made = JSON.stringify(profile)
  snapshots.set(profile, made)
  return made
}

interface StartDeps {
  readonly db: Database
  readonly snapshots: Snapshots
  readonly instance: Instance
  readonly orphans: Orphans
  readonly lostClaims: LostClaims
  readonly charges: Charges
}

export function createStarts(shared: Omit<StartDeps, 'snapshots'>) {
  const deps = { ...shared, snapshots: new WeakMap<Profile, string>() }
  return {
    start: (run) => startRun(deps, run).catch((error: unknown) => deps.lostClaims.doubt(run.tenantId, error)),
  } satisfies Partial<RunStore>
}

interface WhyNotRow {
  readonly profile: string
  readonly status: DurableSession['status']
  readonly claim_owner: string | null
  readonly orphaned: boolean
  readonly waiting: boolean
}

interface StartedRow extends DurableRow {
  /** Microcents held for the run. Absent in a role without billing. */
  readonly held?: number | null
}

/**
 * Three causes: the id was taken between the check and the insert, another run of the conversation is open, or a session id drawn at random is in
 * use.
 */
function taken(error: unknown): StartedRow[] | 'busy' {
  if (violatedConstraint(error) === 'public_runs_open') return 'busy'
  if (sqlState(error) === '23505') return []
  throw error
}

async function startRun(deps: StartDeps, run: StartRun): Promise<StartOutcome> {
  const { tenantId, runId, task, create } = run
  const bytes = attachmentBytesOf(task) + task.prompt.length
  const order = task.chat?.conversationId ?? run.sessionId
  // A refused start is tried again when its reason may be gone: a dead owner, or a run that has just ended.
  for (let attempt = 0; attempt < 4; attempt++) {
    const started = await deps.db
      .unit<StartedRow>(tenantId, startStatement(run, deps), { order, bytes })
      .catch((error: unknown) => deps.charges.billing?.refusalOf(error) ?? taken(error))
    if (started instanceof Error) return { kind: 'unfunded', why: started }
    if (started === 'busy') return (await existing(deps.db, run)) ?? { kind: 'busy' }
    const row = started[0]
    if (row) {
      const session: DurableSession = create
        ? newSessionOf(run.sessionId, create.profile, row)
        : { ...toDurable(row), status: 'running' }
      const { id: sessionId, epoch } = session
      const chat = task.chat && { publicRunId: task.chat.publicRunId }
      const held = typeof row.held === 'number' ? { held: row.held } : {}
      return { kind: 'started', claim: { tenantId, sessionId, runId, epoch, ...chat }, session, ...held }
    }
    const refused = await refusal(deps, run)
    if (refused) return refused
  }
  if (!create) return { kind: 'busy' }
  throw unavailable({ message: 'This server cannot claim runs now; try again.', retryable: true })
}

/** A session that a start has created: what is known of it need not be read back. */
const newSessionOf = (
  id: string,
  profile: Profile,
  { contextTokens }: Pick<DurableRow, 'contextTokens'>,
): DurableSession => ({
  id,
  profile,
  status: 'running',
  epoch: 1,
  stateRev: 0,
  ...(contextTokens ? { contextTokens } : {}),
})

async function existing(db: Database, { tenantId, runId }: StartRun): Promise<StartOutcome | undefined> {
  const [row] = await db.unit<RunRow>(tenantId, runById({ tenant: tenantId, run: runId }))
  return row && { kind: 'exists', run: toRun(row) }
}

/** Why nothing was started. Undefined: the reason may be gone by now, so retry. */
async function refusal(deps: StartDeps, run: StartRun): Promise<StartOutcome | undefined> {
  const { db, instance, orphans } = deps
  const { tenantId, runId, task, create } = run
  const { chat } = task
  let { sessionId } = run
  const found = await existing(db, run)
  if (found) return found
  if (chat?.admission) {
    const { keyId: key, revision: agentRevision } = chat.admission
    const [row] = await db.unit<{ admitted: boolean }>(tenantId, admitted({ tenant: tenantId, key, agentRevision }))
    if (row?.admitted !== true) return { kind: 'stale_admission' }
  }
  if (chat?.continued) {
    const values = { tenant: tenantId, conversation: chat.conversationId, published: chat.publishedId }
    const [conversation] = await db.unit<{ session_id: string | null }>(tenantId, findConversation(values))
    if (!conversation) return { kind: 'no_conversation' }
    // Another request meanwhile gave the conversation a session and is running in it.
    if (create && conversation.session_id !== (create.insteadOf ?? null)) return { kind: 'busy' }
    if (!create && conversation.session_id === null) return { kind: 'no_session' }
    if (!create) sessionId = conversation.session_id!
  }
  const values = { tenant: tenantId, session: sessionId, run: runId, revision: create?.revision }
  const [[session], [tenant]] = await db.batch<[WhyNotRow[], { fresh: boolean }[]]>(tenantId, [
    whyNot(values),
    freshness(values),
  ])
  if (create) {
    if (session) return { kind: 'session_taken' }
    if (tenant?.fresh !== true) return { kind: 'stale_profile' }
    // This process itself may have been declared dead. `beat` then registers it under a new id.
    await instance.beat()
    return undefined
  }
  const of = chat ? { sessionId } : {}
  if (!session || session.status === 'shutdown') return { kind: 'no_session', ...of }
  if (session.profile !== task.profile) return { kind: 'other_profile', profile: session.profile, ...of }
  if (session.status !== 'running') {
    if (session.waiting) return { kind: 'busy' }
    await instance.beat()
    return undefined
  }
  const { claim_owner: owner, orphaned } = session
  if (!orphaned || owner === null || owner === handedOver || owner === parked) return { kind: 'busy' }
  await orphans.endOf(tenantId, owner)
  return undefined
}
