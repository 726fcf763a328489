// The load client, its own process: raw undici dispatch over keep-alive connections, one per simulated client. It takes
// jobs from its parent over IPC and checks every answer: the whole text arrived and the stream ended as it should.
import { setTimeout as sleep } from 'node:timers/promises'
import { Pool } from 'undici'
import { createAnswer } from './answer.ts'
import type { ClientMessage, Job, JobResult } from './job.ts'
import { openLoop } from './open-loop.ts'

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
  const origins = new Set(job.requests.map(({ origin }) => origin))
  const options = { connections: job.clients, headersTimeout: headersMs, bodyTimeout: headersMs }
  const pools = new Map([...origins].map((origin) => [origin, new Pool(origin, options)]))
  const began = performance.now()
  const state: State = {
    job,
    pools,
    began,
    firstMs: [],
    totalMs: [],
    lateMs: [],
    openingLateMs: [],
    lagMs: [],
    chats: 0,
    errors: 0,
    messages: [],
    opened: 0,
    openedMs: undefined,
    closing: false,
  }
  await (job.perSecond === undefined ? closedLoop(state) : byTheClock(state, job.perSecond))
  const ms = performance.now() - began
  await Promise.all([...pools.values()].map((pool) => pool.close()))
  const { chats, errors, messages, firstMs, totalMs, lateMs, openingLateMs, lagMs, openedMs } = state
  return {
    chats,
    errors,
    errorMessages: messages,
    ms,
    firstMs,
    totalMs,
    lateMs,
    openingLateMs,
    lagMs,
    ...(openedMs === undefined ? {} : { openedMs }),
  }
}

interface State {
  readonly job: Job
  readonly pools: ReadonlyMap<string, Pool>
  readonly began: number
  readonly firstMs: number[]
  readonly totalMs: number[]
  readonly lateMs: number[]
  readonly openingLateMs: number[]
  readonly lagMs: number[]
  readonly messages: string[]
  chats: number
  errors: number
  /** How many streams have shown their first delta. */
  opened: number
  openedMs: number | undefined
  /** True once a stream has ended, so that fewer than all are open. */
  closing: boolean
}

async function closedLoop(state: State): Promise<void> {
  const { job, began } = state
  const until = began + (job.durationMs ?? 0)
  const clients = Array.from({ length: job.clients }, async (_, client) => {
    let conversation: string | undefined
    do {
      const next = await chat(state, client, performance.now(), job.continueConversation ? conversation : undefined)
      conversation = next ?? conversation
    } while (performance.now() < until)
  })
  await Promise.all(clients)
}

function byTheClock(state: State, perSecond: number): Promise<void> {
  const clock = { now: () => performance.now(), sleep: (ms: number) => sleep(ms) }
  const one = (due: number, n: number): Promise<unknown> => {
    state.lagMs.push(clock.now() - due)
    return chat(state, n, due, undefined)
  }
  return openLoop(perSecond, state.job.durationMs ?? 0, one, clock)
}

/** The list for the lateness of a delta that has just arrived. */
function latenessOf(state: State): number[] | undefined {
  if (!state.job.tellOpened) return state.lateMs
  if (state.openedMs === undefined) return state.openingLateMs
  const { lateForMs = Infinity } = state.job
  return state.closing || performance.now() - state.began > state.openedMs + lateForMs ? undefined : state.lateMs
}

/** One chat; resolves to its conversation id where the target has one. Never rejects: failures are counted. */
function chat(
  state: State,
  client: number,
  began: number,
  conversation: string | undefined,
): Promise<string | undefined> {
  const { job } = state
  const request = job.requests[client % job.requests.length]
  const pool = request && state.pools.get(request.origin)
  if (!pool) throw new Error('a job without requests')
  const body = conversation === undefined ? job.body : `${job.body.slice(0, -1)},"conversation_id":"${conversation}"}`
  const { promise, resolve } = Promise.withResolvers<string | undefined>()
  const answer = createAnswer(job.format, job.timed ? () => latenessOf(state) : undefined)
  const expected = job.format === 'accepted' ? 202 : 200
  let status = 0
  let firstMs: number | undefined
  const fail = (message: string): void => {
    state.errors++
    state.closing = true
    if (state.messages.length < keptErrors) state.messages.push(message)
    resolve(undefined)
  }
  pool.dispatch(
    {
      method: 'POST',
      path: request.path,
      headers: { ...request.headers, 'content-type': 'application/json' },
      body,
    },
    {
      onRequestStart() {},
      onResponseStart(_controller, statusCode) {
        status = statusCode
      },
      onResponseData(_controller, chunk) {
        answer.read(chunk)
        if (firstMs === undefined && answer.characters > 0) {
          firstMs = performance.now() - began
          if (++state.opened === job.clients && job.tellOpened) {
            state.openedMs = performance.now() - state.began
            send({ kind: 'opened' })
          }
        }
      },
      onResponseEnd() {
        const totalMs = performance.now() - began
        const fault = answer.fault(job.expect)
        if (status !== expected || fault !== undefined) return fail(`status ${status}: ${fault ?? answer.rest()}`)
        state.chats++
        state.closing = true
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
