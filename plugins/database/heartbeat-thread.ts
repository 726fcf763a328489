// The thread behind `Database.heartbeat`: it renews one row, and is busy with nothing else. It imports what it needs for that and
// nothing of ours, because each module is memory and a part of the start.
import { writeSync } from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import pg from 'pg'

/** What the thread is started with. */
export interface Task {
  readonly dsn: string
  readonly text: string
  readonly everyMs: number
  readonly hungMs: number
}
/** What the thread tells: each loss, and whether it renews or fails when that changes. */
export type Heard = { readonly what: 'renewed' | 'lost' } | { readonly what: 'failed'; readonly why: string }

const { dsn, text, everyMs, hungMs } = workerData as Task
const port = parentPort!

/** An answer that takes longer comes too late: another connection may be quicker. */
const answerMs = Math.max(everyMs, 2_000)

let values: unknown[] | undefined
let client: pg.Client | undefined
let beating = false
let ended = false
/** Since the last pulse, counted in beats: a process that was stopped as a whole was not hung. */
let quietMs = 0
let told: string | undefined

function tell(heard: Heard): void {
  if (told === heard.what && heard.what !== 'lost') return
  told = heard.what
  port.postMessage(heard)
}

async function connect(): Promise<pg.Client> {
  const made = new pg.Client({
    connectionString: dsn,
    application_name: 'agent-orc heartbeat',
    keepAlive: true,
    connectionTimeoutMillis: answerMs,
    query_timeout: answerMs,
  })
  // A connection that breaks between two beats fails the next one, which opens another.
  made.on('error', () => {})
  await made.connect().catch(async (error: unknown) => {
    await made.end().catch(() => {})
    throw error
  })
  return made
}

async function renew(): Promise<void> {
  const given = values
  try {
    client ??= await connect()
    const { rowCount } = await client.query({ name: 'heartbeat', text, values: given! })
    if (rowCount) return tell({ what: 'renewed' })
    // Nothing to renew until the next pulse says what.
    if (values === given) values = undefined
    tell({ what: 'lost' })
  } catch (error) {
    void client?.end().catch(() => {})
    client = undefined
    tell({ what: 'failed', why: (error as Error).message })
  }
}

async function beat(): Promise<void> {
  if (beating || values === undefined || quietMs > hungMs) return
  beating = true
  await renew()
  beating = false
  if (ended) await end()
}

async function end(): Promise<void> {
  clearInterval(timer)
  await client?.end().catch(() => {})
  port.close()
}

const timer = setInterval(() => {
  const hung = quietMs > hungMs
  quietMs += everyMs
  // Whoever writes the log hangs: this line is past it.
  if (!hung && quietMs > hungMs) {
    const msg = `this process has been hung for ${hungMs} ms: its lease is not renewed any more, and its runs go to others`
    writeSync(2, `${JSON.stringify({ level: 50, time: new Date().toISOString(), msg })}\n`)
  }
  void beat()
}, everyMs)

port.on('message', (given: unknown[] | 'end') => {
  if (given === 'end') {
    ended = true
    if (!beating) void end()
    return
  }
  const first = values === undefined
  values = given
  quietMs = 0
  if (first) void beat()
})
