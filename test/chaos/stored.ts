import pg from 'pg'

export interface StoredEvent {
  readonly seq: number
  readonly type: string
  /** The text of an `assistant` event, or the whole answer of a `result`. */
  readonly text?: string
}

export interface StoredRun {
  readonly id: string
  readonly sessionId: string
  readonly status: string
  readonly owner: string
  /** Milliseconds since the epoch. */
  readonly finishedAt: number | undefined
  readonly events: readonly StoredEvent[]
}

export interface StoredPublicRun {
  readonly id: string
  readonly runId: string
  readonly conversationId: string
  readonly status: string
  readonly errorCode: string | undefined
  readonly finishedAt: number | undefined
}

export interface StoredMessage {
  readonly publicRunId: string
  readonly role: string
  readonly content: string
}

export interface Stored {
  readonly runs: readonly StoredRun[]
  readonly publicRuns: readonly StoredPublicRun[]
  readonly messages: readonly StoredMessage[]
  readonly approvals: readonly { readonly id: string; readonly runId: string; readonly status: string }[]
  readonly sessions: readonly { readonly id: string; readonly status: string; readonly run: string | undefined }[]
}

/** A connection of the judge's own, past all proxies. */
async function connected<T>(dsn: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: dsn, connectionTimeoutMillis: 2_000 })
  client.on('error', () => {})
  await client.connect()
  try {
    await client.query("SELECT set_config('app.tenant_id', 'default', false)")
    return await work(client)
  } finally {
    await client.end().catch(() => {})
  }
}

const rows = async <Row extends object>(client: pg.Client, text: string): Promise<Row[]> =>
  (await client.query<Row>(text)).rows

const time = (at: Date | null): number | undefined => at?.getTime()

/** Reads everything that is stored in the end. */
export const readStored = (dsn: string): Promise<Stored> =>
  connected(dsn, async (client) => {
    const events = new Map<string, StoredEvent[]>()
    const chunks = await rows<{ run_id: string; count: number; lines: Buffer }>(
      client,
      'SELECT run_id, count, lines FROM run_events ORDER BY run_id, first_seq',
    )
    for (const { run_id, count, lines } of chunks) {
      const log = events.get(run_id) ?? []
      events.set(run_id, log)
      const texts = lines.toString('utf8').trimEnd().split('\n')
      if (texts.length !== count) throw new Error(`run ${run_id}: a chunk of ${count} holds ${texts.length} lines`)
      for (const text of texts) log.push(JSON.parse(text) as StoredEvent)
    }
    const runs = await rows<{
      id: string
      session_id: string
      status: string
      claim_owner: string
      finished_at: Date | null
    }>(client, 'SELECT id, session_id, status, claim_owner, finished_at FROM runs')
    const publicRuns = await rows<{
      id: string
      run_id: string
      conversation_id: string
      status: string
      error_code: string | null
      finished_at: Date | null
    }>(client, 'SELECT id, run_id, conversation_id, status, error_code, finished_at FROM public_runs')
    return {
      runs: runs.map((row) => ({
        id: row.id,
        sessionId: row.session_id,
        status: row.status,
        owner: row.claim_owner,
        finishedAt: time(row.finished_at),
        events: events.get(row.id) ?? [],
      })),
      publicRuns: publicRuns.map((row) => ({
        id: row.id,
        runId: row.run_id,
        conversationId: row.conversation_id,
        status: row.status,
        errorCode: row.error_code ?? undefined,
        finishedAt: time(row.finished_at),
      })),
      messages: await rows(client, 'SELECT public_run_id AS "publicRunId", role, content FROM messages'),
      approvals: await rows(client, 'SELECT id, run_id AS "runId", status FROM approvals'),
      sessions: await rows(client, 'SELECT id, status, claim_run AS run FROM sessions'),
    }
  })

/** Counts what is still open; 0 when everything has ended. */
export const countOpen = (dsn: string): Promise<number> =>
  connected(dsn, async (client) => {
    const [row] = await rows<{ n: number }>(
      client,
      `SELECT (SELECT count(*) FROM runs WHERE finished_at IS NULL)::int
            + (SELECT count(*) FROM public_runs WHERE finished_at IS NULL)::int AS n`,
    )
    return row!.n
  })

/** The runs, and the public runs, that these instances have under way. */
export const openRunsOf = (dsn: string, owners: readonly string[]): Promise<{ runs: string[]; publicRuns: string[] }> =>
  connected(dsn, async (client) => {
    const list = owners.map((owner) => pg.escapeLiteral(owner)).join(', ') || 'NULL'
    const runs = await rows<{ id: string }>(
      client,
      `SELECT id FROM runs WHERE finished_at IS NULL AND claim_owner IN (${list})`,
    )
    const publicRuns = await rows<{ id: string }>(
      client,
      `SELECT id FROM public_runs WHERE finished_at IS NULL AND owner_instance IN (${list})`,
    )
    return { runs: runs.map((row) => row.id), publicRuns: publicRuns.map((row) => row.id) }
  })
