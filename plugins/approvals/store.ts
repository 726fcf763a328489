import { type Static, Type } from '@sinclair/typebox'
import type { Database, TenantTx } from '#contracts/database'
import type { AskedCall, AskedNode } from '#contracts/approvals'
import { isId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import { roles, type TenantRole } from '#contracts/auth'
import { storable, storableJson } from '#kit'
import { type ListSql, readList } from '#kit/lists'
import { type EndUserStore, retentionErrors, unlessHeld } from '#contracts/retention'

export const statuses = ['waiting', 'approved', 'rejected', 'cancelled'] as const
export type Status = (typeof statuses)[number]
export const kinds = ['tool', 'node'] as const

const Time = Type.String({ format: 'date-time' })
export const Approval = Type.Object({
  id: Type.String(),
  kind: Type.Union(
    kinds.map((one) => Type.Literal(one)),
    { description: 'What it is for: a call of a tool by an agent, or a node of a workflow.' },
  ),
  status: Type.Union(
    statuses.map((one) => Type.Literal(one)),
    { description: '`cancelled`: the call or node ended before anybody had decided.' },
  ),
  message: Type.String({ description: 'What is asked.' }),
  runId: Type.Optional(Type.String({ description: 'For a call: the run of the agent.' })),
  sessionId: Type.Optional(Type.String()),
  profile: Type.Optional(Type.String()),
  tool: Type.Optional(Type.String()),
  arguments: Type.Optional(
    Type.Unknown({ description: 'The arguments of the tool call; in lists up to 4,096 bytes of JSON.' }),
  ),
  argumentsTruncated: Type.Optional(Type.Literal(true)),
  endUserId: Type.Optional(Type.String()),
  workflowRunId: Type.Optional(Type.String()),
  nodeId: Type.Optional(Type.String()),
  role: Type.Union(
    roles.map((one) => Type.Literal(one)),
    { description: 'Who may decide: keys of this role, or of one above.' },
  ),
  expiresAt: Type.Optional(Time),
  onExpiry: Type.String({ description: 'The decision when nobody decides in time: `reject` or `approve`.' }),
  comment: Type.Optional(Type.String()),
  resolvedBy: Type.Optional(Type.String({ description: 'Id of the key, or `expiry`.' })),
  createdAt: Time,
  resolvedAt: Type.Optional(Time),
})
export type Approval = Static<typeof Approval>

export const Resolve = Type.Object(
  {
    decision: Type.Union([Type.Literal('approve'), Type.Literal('reject')]),
    comment: Type.Optional(
      Type.String({
        maxLength: 10_000,
        description: 'Passed to the model of a rejected call, or to the workflow of a node.',
      }),
    ),
  },
  { additionalProperties: false },
)
export type Resolve = Static<typeof Resolve>

export interface Row {
  readonly id: string
  readonly workflow_run_id: string | null
  readonly node_id: string | null
  readonly run_id: string | null
  readonly session_id: string | null
  readonly profile: string | null
  readonly tool: string | null
  readonly arguments: string | null
  readonly cut: boolean
  readonly end_user_id: string | null
  readonly message: string
  readonly status: Status
  readonly role: TenantRole
  readonly expires_at: string | null
  readonly on_expiry: string
  readonly comment: string | null
  readonly resolved_by: string | null
  readonly created_at: string
  readonly resolved_at: string | null
}
const others = `id, workflow_run_id, node_id, run_id, session_id, profile, tool, end_user_id, message, status, role, expires_at, on_expiry,
  comment, resolved_by, created_at, resolved_at`
export const columns = `${others}, arguments, false AS cut`
/** Longer arguments are left out of lists. PostgreSQL knows the length of a text without reading it. */
const shownBytes = 4_096
const previews = `${others}, CASE WHEN octet_length(arguments) <= ${shownBytes} THEN arguments END AS arguments,
  coalesce(octet_length(arguments) > ${shownBytes}, false) AS cut`

export function toApproval(row: Row): Approval {
  const shown: Record<string, unknown> = {
    id: row.id,
    kind: row.run_id === null ? 'node' : 'tool',
    status: row.status,
    message: row.message,
    runId: row.run_id,
    sessionId: row.session_id,
    profile: row.profile,
    tool: row.tool,
    arguments: row.arguments === null ? null : (JSON.parse(row.arguments) as unknown),
    argumentsTruncated: row.cut ? true : null,
    endUserId: row.end_user_id,
    workflowRunId: row.workflow_run_id,
    nodeId: row.node_id,
    role: row.role,
    expiresAt: row.expires_at,
    onExpiry: row.on_expiry,
    comment: row.comment,
    resolvedBy: row.resolved_by,
    createdAt: row.created_at,
    resolvedAt: row.resolved_at,
  }
  for (const [field, value] of Object.entries(shown)) if (value === null) delete shown[field]
  return shown as Approval
}

export interface Filter {
  readonly status?: Status
  readonly kind?: (typeof kinds)[number]
  readonly runId?: string
  readonly workflowRunId?: string
  readonly profile?: string
}

/** Lists approvals, newest first. */
export function listApprovals(
  database: Database,
  tenantId: string,
  page: Page,
  { kind, ...filter }: Filter,
): Promise<Listing<Approval>> {
  const names = { status: 'status', runId: 'run_id', workflowRunId: 'workflow_run_id', profile: 'profile' } as const
  const values: unknown[] = [tenantId]
  const conditions = ['tenant_id = $1']
  for (const [field, column] of Object.entries(names)) {
    const value = filter[field as keyof typeof names]
    // No stored id or name contains a NUL, so nothing can match.
    if (value?.includes('\0')) return Promise.resolve({ items: [], total: 0 })
    if (value !== undefined) conditions.push(`${column} = $${values.push(value)}`)
  }
  if (kind) conditions.push(`run_id IS ${kind === 'tool' ? 'NOT ' : ''}NULL`)
  const list: ListSql = {
    columns: `${others}, arguments`,
    shown: previews,
    from: 'approvals',
    where: conditions.join(' AND '),
    values,
    order: { created_at: 'timestamptz', id: 'text' },
    newestFirst: true,
    atOnce: 50,
  }
  return readList({ database, tenantId }, list, page, toApproval)
}

export async function findApproval(database: Database, tenantId: string, id: string): Promise<Approval | undefined> {
  if (!isId('appr', id)) return undefined
  const [[row]] = await database.batch<[Row[]]>(tenantId, [
    { text: `SELECT ${columns} FROM approvals WHERE tenant_id = $1 AND id = $2`, values: [tenantId, id] },
  ])
  return row && toApproval(row)
}

/** The webhook for a run that has none of its own: that of the workflow run that it is a part of, else that of the topmost workflow run or agent run. */
const inherited = `(SELECT webhook_url FROM workflow_runs WHERE tenant_id = $1 AND id = parent ->> 'runId'),
             (SELECT webhook_url FROM workflow_runs WHERE tenant_id = $1 AND id = parent ->> 'rootId'),
             (SELECT webhook_url FROM runs top WHERE top.tenant_id = $1 AND top.id = run.parent ->> 'rootId')`

/** Stores the approval of a call, with the webhook of its run. False: the run has ended. */
export async function insertCall(
  tx: TenantTx,
  id: string,
  { runId, sessionId, key, tool, arguments: given, profile, endUserId }: AskedCall,
  expiresInSeconds: number,
): Promise<boolean> {
  const rows = await tx.query({
    name: 'approval-of-call',
    // Sets `waited_ms`, which marks the run as one that has asked. When the run ends, its open approvals are closed.
    text: `WITH run AS (
             UPDATE runs SET waited_ms = coalesce(waited_ms, 0) WHERE tenant_id = $1 AND id = $3 AND finished_at IS NULL
             RETURNING webhook_url, parent)
           INSERT INTO approvals (tenant_id, id, run_id, session_id, call_key, profile, tool, arguments, end_user_id, message, role,
             expires_at, on_expiry, webhook_url)
           SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now() + $12 * interval '1 second', $13,
             coalesce(webhook_url, ${inherited}) FROM run
           RETURNING 1`,
    values: [
      tx.tenantId,
      id,
      runId,
      sessionId,
      storable(key),
      profile.name,
      storable(tool),
      storableJson(given),
      endUserId === undefined ? null : storable(endUserId),
      `The agent '${profile.name}' asks to call '${storable(tool)}'.`,
      profile.approvals?.role ?? 'member',
      expiresInSeconds,
      profile.approvals?.onExpiry ?? 'reject',
    ],
  })
  return rows.length > 0
}

/** Stores the approval of a node, with the webhook of its workflow run. */
export async function insertNode(tx: TenantTx, node: AskedNode): Promise<void> {
  const { id, workflowRunId, nodeId, message, expiresInMs, onExpiry, role } = node
  await tx.query({
    name: 'approval-of-node',
    text: `INSERT INTO approvals (tenant_id, id, workflow_run_id, node_id, message, expires_at, on_expiry, role, webhook_url)
           SELECT $1, $3, $2, $4, $5, clock_timestamp() + $6::float8 * interval '1 millisecond', $7, $8, webhook_url
           FROM workflow_runs WHERE tenant_id = $1 AND id = $2 ON CONFLICT DO NOTHING`,
    values: [tx.tenantId, workflowRunId, id, nodeId, storable(message), expiresInMs ?? null, onExpiry, role],
  })
}

/** Approvals of one read of an export, and bytes of their arguments, unless the first one alone has more: each may have a megabyte. */
const atOnce = 50
const mostBytes = 1024 * 1024
/** Approvals of one transaction of an erasure. */
const goneAtOnce = 100

/** SQL: the approvals of the tenant and end user that are the first two values of a statement, as their index has them. */
export const theirs = 'tenant_id = $1 AND md5(end_user_id) = md5($2) AND end_user_id = $2'

/**
 * The personal data in approvals: what agents asked for on behalf of an end user. Approvals that still wait are not erased here; they go with their
 * runs.
 */
export const createEndUserData = (database: Database): EndUserStore => ({
  async *items(tenantId, endUserId) {
    for (let after = '', rows: Row[]; ; after = rows.at(-1)!.id) {
      const page = {
        text: `SELECT ${columns} FROM (
                 SELECT *, row_number() OVER line AS nth, sum(coalesce(octet_length(arguments), 0)) OVER line AS bytes FROM (
                   SELECT * FROM approvals WHERE ${theirs} AND id > $3 ORDER BY id LIMIT ${atOnce}) near
                 WINDOW line AS (ORDER BY id)) weighed
               WHERE nth = 1 OR bytes <= ${mostBytes} ORDER BY id`,
        values: [tenantId, endUserId, after],
      }
      ;[rows] = await database.as('reads').batch<[Row[]]>(tenantId, [page])
      if (rows.length === 0) return
      yield rows.map((row) => ({ ...toApproval(row) }))
    }
  },
  async erase(tenantId, endUserId, signal) {
    const gone = {
      text: `DELETE FROM approvals WHERE tenant_id = $1 AND id = ANY (ARRAY(
               SELECT id FROM approvals WHERE ${theirs} AND status <> 'waiting' ORDER BY id LIMIT ${goneAtOnce} FOR UPDATE)) RETURNING 1`,
      values: [tenantId, endUserId],
    }
    let erased = 0
    for (let full = true; full && !signal.aborted;) {
      const rows = await database.as('reads').tenant(tenantId, async (tx) => {
        if ((await tx.query(unlessHeld(tenantId))).length === 0) throw retentionErrors.legalHold()
        return tx.query(gone)
      })
      erased += rows.length
      full = rows.length === goneAtOnce
    }
    return erased
  },
})
