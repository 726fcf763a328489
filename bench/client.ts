// The load client, its own process: raw undici dispatch over keep-alive connections, one per simulated client. It takes
// jobs from its parent over IPC and checks every answer: the whole text arrived and the stream ended as it should.
import { Pool } from 'undici'
import { createAnswer } from './answer.ts'
import type { ClientMessage, Job, JobResult } from './job.ts'

const headersMs = 30_000
const keptErrors = 5

process.on('message', (job: Job) => {
  run(job).then(
    (result) => send({ kind: 'result', result }),
    (error: unknown) => send({ kind: 'failed', message: String(error) }),
  )
})
process.once('disconnect', () => process.exit())

const send = (message: ClientMessage): void => {
  process.send?.(message)
}

async function run(job: Job): Promise<JobResult> {
  const pool = new Pool(job.origin, { connections: job.clients, headersTimeout: headersMs, bodyTimeout: headersMs })
  const state: State = { job, pool, firstMs: [], totalMs: [], lateMs: [], chats: 0, errors: 0, messages: [], opened: 0 }
  const began = performance.now()
  const until = began + (job.durationMs ?? 0)
  const clients = Array.from({ length: job.clients }, async (_, client) => {
    let conversation: string | undefined
    do {
      const next = await chat(state, client, job.continueConversation ? conversation : undefined)
      conversation = next ?? conversation
    } while (performance.now() < until)
  })
  await Promise.all(clients)
  const ms = performance.now() - began
  await pool.close()
  return {
    chats: state.chats,
    errors: state.errors,
    errorMessages: state.messages,
    ms,
    firstMs: state.firstMs,
    totalMs: state.totalMs,
    lateMs: state.lateMs,
  }
}

interface State {
  readonly job: Job
  readonly pool: Pool
  readonly firstMs: number[]
  readonly totalMs: number[]
  readonly lateMs: number[]
  readonly messages: string[]
  chats: number
  errors: number
  /** Streams that have shown their first delta. */
  opened: number
}

/** One chat; resolves to its conversation id where the target has one. Never rejects: failures are counted. */
function chat(state: State, client: number, conversation: string | undefined): Promise<string | undefined> {
  const { job } = state
  const { path, headers } = job.requests[client % job.requests.length] ?? { path: '/', headers: {} }
  const body = conversation === undefined ? job.body : `${job.body.slice(0, -1)},"conversation_id":"${conversation}"}`
  const { promise, resolve } = Promise.withResolvers<string | undefined>()
  const began = performance.now()
  const answer = createAnswer(job.format, job.timed ? state.lateMs : undefined)
  let status = 0
  let firstMs: number | undefined
  const fail = (message: string): void => {
    state.errors++
    if (state.messages.length < keptErrors) state.messages.push(message)
    resolve(undefined)
  }
  state.pool.dispatch(
    { method: 'POST', path, headers: { ...headers, 'content-type': 'application/json' }, body },
    {
      onRequestStart() {},
      onResponseStart(_controller, statusCode) {
        status = statusCode
      },
      onResponseData(_controller, chunk) {
        answer.read(chunk)
        if (firstMs === undefined && answer.characters > 0) {
          firstMs = performance.now() - began
          if (++state.opened === job.clients && job.tellOpened) send({ kind: 'opened' })
        }
      },
      onResponseEnd() {
        const totalMs = performance.now() - began
        const fault = answer.fault(job.expect)
        if (status !== 200 || fault !== undefined) return fail(`status ${status}: ${fault ?? answer.rest()}`)
        state.chats++
        state.firstMs.push(firstMs ?? totalMs)
        state.totalMs.push(totalMs)
        resolve(answer.conversation)
      },
      onResponseError(_controller, error) {
        fail(String(error))
      },
    },
  )
  return promise
}
