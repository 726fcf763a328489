import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import type { Profile } from '#contracts/profiles'
import { createEventEncoder, type LogChunk, parseLine } from '#contracts/run-event'
import type { Claim, FinishRun, RunStore, StartOutcome } from '#contracts/run-store'
import type { RunStatus, RunSummary, SubTask } from '#contracts/runs'
import { testProfile } from './runs.ts'

/** A store with the tenants `acme` and `globex`; called once per test. */
export type OpenStore = (t: TestContext) => Promise<RunStore>

export const profile = (name = 'writer'): Profile => testProfile(name)

/** The fields of a prompt beside its text, and the same as a summary shows them. */
export const promptParts: Pick<SubTask, 'attachments' | 'responseFormat'> = {
  attachments: [
    { mediaType: 'image/png', data: 'aGVsbG8=', name: 'a\0.png' },
    { mediaType: 'application/pdf', data: 'aGVsbA==' },
  ],
  responseFormat: { type: 'json_schema', name: 'answer', schema: { type: 'object' } },
}
export const shownParts: Pick<RunSummary['subTask'], 'attachments' | 'responseFormat'> = {
  attachments: [
    { mediaType: 'image/png', name: 'a\0.png', bytes: 5 },
    { mediaType: 'application/pdf', bytes: 4 },
  ],
  responseFormat: { type: 'json_schema', name: 'answer' },
}

export const unique = (kind: string): string => `${kind}-${randomBytes(6).toString('hex')}`

export interface Begun {
  readonly claim: Claim
  readonly sessionId: string
  readonly runId: string
}

export async function begin(store: RunStore, tenantId = 'acme', runId = unique('run')): Promise<Begun> {
  const sessionId = unique('sess')
  const outcome = await store.start({
    tenantId,
    runId,
    sessionId,
    task: { profile: 'writer', prompt: 'hello' },
    create: { profile: profile() },
  })
  assert.equal(outcome.kind, 'started')
  return { claim: (outcome as StartOutcome & { kind: 'started' }).claim, sessionId, runId }
}

export const again = (store: RunStore, sessionId: string, runId = unique('run'), name = 'writer', tenantId = 'acme') =>
  store.start({ tenantId, runId, sessionId, task: { profile: name, prompt: 'and then?' } })

/** `count` events of a run from `firstSeq` on, as the conductor would hand them over. */
export function chunkOf(claim: Claim, firstSeq: number, count: number): LogChunk {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  const lines = Array.from({ length: count }, (_, i) =>
    encoder.line({ type: 'assistant', text: `word ${firstSeq + i} `, delta: true }),
  )
  return { firstSeq, count, lines: Buffer.from(lines.join('')) }
}

export const resultEnd = (claim: Claim, firstSeq: number): FinishRun => ({
  claim,
  status: 'ok',
  sessionStatus: 'idle',
  result: 'done',
  tail: {
    firstSeq,
    count: 1,
    lines: Buffer.from(
      createEventEncoder(claim.runId, claim.sessionId, firstSeq).line({
        type: 'result',
        text: 'done',
        finishReason: 'stop',
      }),
    ),
  },
})

export const errorEnd = (claim: Claim, firstSeq: number, status: 'error' | 'cancelled' = 'error'): FinishRun => ({
  claim,
  status,
  sessionStatus: status === 'error' ? 'errored' : 'idle',
  error: { code: status, message: 'no more' },
  tail: {
    firstSeq,
    count: 1,
    lines: Buffer.from(
      createEventEncoder(claim.runId, claim.sessionId, firstSeq).line({
        type: 'error',
        code: status,
        message: 'no more',
      }),
    ),
  },
})

export const stolen = { code: 'cancelled', message: 'taken away' }

export async function readAll(store: RunStore, tenantId: string, runId: string) {
  const events: Record<string, unknown>[] = []
  let status: RunStatus | undefined
  for (let after = 0; ;) {
    const page = await store.readLog(tenantId, runId, after)
    assert.ok(page, 'the run has a log')
    status = page.status
    if (page.chunks.length === 0) break
    for (const chunk of page.chunks) {
      const lines = chunk.lines.toString().trimEnd().split('\n')
      assert.equal(lines.length, chunk.count)
      for (const line of lines) events.push(parseLine(Buffer.from(line))!)
      after = chunk.firstSeq + chunk.count - 1
    }
  }
  return { events, status }
}

/** Every log ends once, counts without a gap, and agrees with the run's status. */
export async function assertOneEnding(store: RunStore, tenantId: string, runId: string): Promise<RunStatus> {
  const { events, status } = await readAll(store, tenantId, runId)
  assert.deepEqual(
    events.map((e) => e['seq']),
    events.map((_, i) => i + 1),
  )
  const terminal = events.filter((e) => e['type'] === 'result' || e['type'] === 'error')
  assert.equal(terminal.length, 1, 'exactly one terminal event')
  assert.equal(events.at(-1), terminal[0])
  assert.equal(terminal[0]?.['type'] === 'result', status === 'ok')
  assert.equal((await store.findRun(tenantId, runId))?.status, status)
  return status!
}
