import { AppError, notFound } from '#kernel'
import { type Database, violatedConstraint } from '#contracts/database'
import { publicMessageOf } from '#contracts/endings'
import { after, createEventEncoder, endsLog, type LogChunk, type RuntimeEvent } from '#contracts/run-event'
import type { DispatchTask, RunDispatch, RunStatus, RunSummary } from '#contracts/runs'

/** A run whose events the test writes. */
export interface ScriptedRun {
  readonly tenantId: string
  readonly task: DispatchTask
  readonly sessionId: string
  /** Appends events as one chunk; a `result` or `error` ends the run: it is stored first, and shown then. */
  emit(...events: RuntimeEvent[]): void
  /** No runner takes it: it never was. */
  takeBack(): Promise<void>
  readonly followers: number
}

export interface ScriptedDispatch extends RunDispatch {
  /** The runs that were started. */
  readonly runs: Map<string, ScriptedRun>
  readonly started: DispatchTask[]
  readonly cancelled: string[]
  /** Called for every start, before the run begins: throws to refuse it, or writes events. */
  script: (task: DispatchTask, run: () => ScriptedRun) => void | Promise<void>
  /** While set, no call is answered and no run starts. */
  away: boolean
  /** While set, the answer to a start is lost: `before` or `after` the run began. */
  cut: 'before' | 'after' | undefined
  /** Where runs begin and end; the gateway of the test sets it. */
  database: Database | undefined
  newest(): ScriptedRun
}

export const say = (text: string): RuntimeEvent => ({ type: 'assistant', text, delta: true })
export const finish = (text: string): RuntimeEvent => ({ type: 'result', text, finishReason: 'stop' })
export const fail = (code: string, message = 'http://provider.internal said no'): RuntimeEvent => ({
  type: 'error',
  code,
  message,
})

/** A conductor without a network and without runners: its runs are scripted, and begin and end in the tables of the chat as real ones do. */
export function scriptedDispatch(): ScriptedDispatch {
  const all = new Map<string, ReturnType<typeof createRun>>()
  const unreachable = (retryable: boolean): AppError =>
    new AppError('upstream', 502, { message: 'no conductor at 10.0.0.1', retryable })
  const dispatch: ScriptedDispatch = {
    runs: all,
    started: [],
    cancelled: [],
    away: false,
    cut: undefined,
    database: undefined,
    script: (_task, run) => run().emit(say('Hel'), say('lo'), finish('Hello')),
    newest: () => [...all.values()].at(-1)!,
    async start(tenantId, task, afterSeq, signal) {
      if (dispatch.away) throw unreachable(true)
      if (dispatch.cut === 'before') throw unreachable(false)
      dispatch.started.push(task)
      let run = all.get(task.id)
      if (!run) {
        const fresh = createRun(
          tenantId,
          task,
          () => dispatch.database!,
          () => all.delete(task.id),
        )
        await dispatch.script(task, () => fresh)
        await fresh.begin()
        all.set(task.id, (run = fresh))
      }
      if (dispatch.cut) throw unreachable(false)
      return { runId: task.id, sessionId: run.sessionId, status: 'running', events: run.read(afterSeq, signal) }
    },
    async *follow(_tenantId, runId, afterSeq, signal) {
      if (dispatch.away) throw unreachable(false)
      const run = all.get(runId)
      if (!run) throw notFound()
      yield* run.read(afterSeq, signal)
    },
    async find(_tenantId, runId) {
      return all.get(runId)?.summary()
    },
    async cancel(_tenantId, runId) {
      dispatch.cancelled.push(runId)
      all.get(runId)?.emit(fail('cancelled'))
    },
    ping: async () => {},
  }
  return dispatch
}

const admitted = `
  SELECT FROM published_agent_keys k
  JOIN published_agents a ON a.tenant_id = k.tenant_id AND a.id = k.published_id
  JOIN tenants t ON t.id = k.tenant_id AND t.deleted_at IS NULL
  WHERE k.tenant_id = $1 AND k.id = $2 AND k.revoked_at IS NULL
    AND (k.expires_at IS NULL OR k.expires_at > now()) AND a.xmin::text = $3`
const begin = `
  WITH fresh AS (
    INSERT INTO conversations (tenant_id, id, published_id, end_user_id, session_id) SELECT $1, $2, $3, $6, $9 WHERE NOT $10
    ON CONFLICT DO NOTHING RETURNING id),
  conversation AS (
    SELECT id FROM fresh UNION SELECT id FROM conversations WHERE tenant_id = $1 AND id = $2 AND published_id = $3),
  chat AS (
    INSERT INTO public_runs AS old (tenant_id, id, published_id, conversation_id, run_id, end_user_id, status)
    SELECT $1, $4, $3, id, $5, $6, 'running' FROM conversation
    ON CONFLICT (tenant_id, id) DO UPDATE SET status = 'running' WHERE old.status = 'dispatching'
    RETURNING conversation_id),
  message AS (
    INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, attachments)
    SELECT $1, conversation_id, $4, 'user', $7, $8::json FROM chat
    ON CONFLICT DO NOTHING),
  run AS (
    INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, public_run)
    SELECT $1, $5, $9, $11, 'running', $7, 'inst_scripted', 1, $4 FROM chat)
  SELECT EXISTS (SELECT FROM conversation) AS found`
const end = `
  WITH run AS (
    UPDATE runs SET status = CASE WHEN $4::text IS NULL THEN 'ok' ELSE 'error' END, error_code = $4, finished_at = now()
    WHERE tenant_id = $1 AND id = $2),
  chat AS (
    UPDATE public_runs SET status = CASE WHEN $4::text IS NULL THEN 'ok' ELSE 'error' END, error_code = $4,
      last_seq = $5, finished_at = now()
    WHERE tenant_id = $1 AND run_id = $2 AND finished_at IS NULL RETURNING id, conversation_id)
  INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
  SELECT $1, conversation_id, id, 'assistant', $3, $4::text IS NOT NULL FROM chat`

const discard = `
  WITH run AS (DELETE FROM runs WHERE tenant_id = $1 AND id = $2),
  chat AS (DELETE FROM public_runs WHERE tenant_id = $1 AND run_id = $2 RETURNING id, conversation_id),
  message AS (DELETE FROM messages WHERE tenant_id = $1 AND public_run_id = (SELECT id FROM chat))
  DELETE FROM conversations WHERE tenant_id = $1 AND id = (SELECT conversation_id FROM chat)`

function createRun(tenantId: string, task: DispatchTask, database: () => Database, forget: () => void) {
  const sessionId = `sess-0a1b2c3d-${Math.random().toString(16).slice(2, 10).padEnd(8, '0')}`
  const encoder = createEventEncoder(task.id, sessionId, 1)
  const chunks: LogChunk[] = []
  const waiting = new Set<() => void>()
  const begun = Promise.withResolvers<void>()
  let terminal: RuntimeEvent | undefined
  let isBegun = false
  let isTakenBack = false

  const show = (events: readonly RuntimeEvent[]): void => {
    const firstSeq = encoder.next
    const lines = Buffer.from(events.map((event) => encoder.line(event)).join(''))
    chunks.push({ firstSeq, count: events.length, lines })
    for (const wake of waiting) wake()
  }
  const store = async (event: RuntimeEvent, seq: number): Promise<void> => {
    const code = event.type === 'error' ? event.code : null
    const content = event.type === 'result' ? event.text : publicMessageOf(code!)
    await database().batch(tenantId, [{ text: end, values: [tenantId, task.id, content, code, seq] }])
  }
  const append = (events: readonly RuntimeEvent[]): void => {
    const last = events.at(-1)!
    if (last !== terminal) show(events)
    else void store(last, encoder.next + events.length - 1).then(() => show(events))
  }
  return {
    tenantId,
    task,
    sessionId,
    get followers() {
      return waiting.size
    },
    async begin() {
      const { chat, attachments } = task
      if (chat) {
        const names = attachments?.map(({ name, mediaType }) => ({
          ...(name === undefined ? {} : { name }),
          mediaType,
        }))
        const { conversationId, publishedId, publicRunId, endUserId, admission } = chat
        if (admission) {
          const values = [tenantId, admission.keyId, admission.revision]
          const [rows] = await database().batch<[object[]]>(tenantId, [{ text: admitted, values }])
          if (rows.length === 0) throw new AppError('admission_stale', 409)
        }
        const ids = [tenantId, conversationId, publishedId, publicRunId, task.id, endUserId ?? null]
        const rest = [task.prompt, names ? JSON.stringify(names) : null, sessionId, chat.continued, task.profile]
        const [[row]] = await database()
          .batch<[{ found: boolean }[]]>(tenantId, [{ text: begin, values: [...ids, ...rest] }])
          .catch((error: unknown) => {
            throw violatedConstraint(error) === 'public_runs_open' ? new AppError('conversation_busy', 409) : error
          })
        if (!row!.found) throw new AppError('conversation_not_found', 404)
      }
      isBegun = true
      begun.resolve()
    },
    emit(...events: RuntimeEvent[]) {
      if (terminal) return
      terminal = events.find((event) => event.type === 'result' || event.type === 'error')
      if (isBegun) append(events)
      else void begun.promise.then(() => append(events))
    },
    async takeBack() {
      await database().batch(tenantId, [{ text: discard, values: [tenantId, task.id] }])
      forget()
      isTakenBack = true
      for (const wake of waiting) wake()
    },
    async *read(afterSeq: number, signal: AbortSignal): AsyncGenerator<LogChunk> {
      for (let next = 0, seq = afterSeq, over = false; !signal.aborted && !isTakenBack;) {
        const chunk = chunks[next]
        if (chunk) {
          next++
          over = endsLog(chunk)
          // A reader that is past the end gets the terminal event all the same.
          const rest = after(chunk, seq) ?? (over ? after(chunk, chunk.firstSeq + chunk.count - 2) : undefined)
          if (!rest) continue
          seq = rest.firstSeq + rest.count - 1
          yield rest
        } else if (over) {
          return
        } else {
          await new Promise<void>((resolve) => {
            const wake = (): void => {
              waiting.delete(wake)
              signal.removeEventListener('abort', wake)
              resolve()
            }
            waiting.add(wake)
            signal.addEventListener('abort', wake)
          })
        }
      }
    },
    summary(): RunSummary {
      const status: RunStatus = !terminal ? 'running' : terminal.type === 'result' ? 'ok' : 'error'
      const subTask = { id: task.id, sessionId, profile: task.profile, prompt: task.prompt }
      return { runId: task.id, sessionId, status, subTask, startedAt: new Date().toISOString() }
    },
  }
}
