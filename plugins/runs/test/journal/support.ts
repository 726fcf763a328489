import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import type { FastifyBaseLogger } from 'fastify'
import type { Profile } from '#contracts/profiles'
import { createEventEncoder, type LogChunk, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, RunStore, StartOutcome } from '#contracts/run-store'
import { JournalFolder } from '../../journal/folder.ts'
import { JournalMirror } from '../../journal/mirror.ts'
import { KeptRunStore } from '../../memory/kept.ts'

export async function emptyFolder(t: TestContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'run-journal-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** A store in memory that is kept in a folder. */
export async function keptStore(t: TestContext, dir: string): Promise<RunStore> {
  const store = await KeptRunStore.open(await JournalFolder.open(dir))
  t.after(() => store.close())
  return store
}

/** What a conductor writes to a folder beside its store; `stop` is the end of its process. */
export async function mirrored(
  truth: RunStore,
  dir: string,
): Promise<{ store: RunStore; stop(): Promise<void>; warnings: readonly string[] }> {
  const warnings: string[] = []
  const log = { warn: (_detail: object, message: string) => warnings.push(message) } as unknown as FastifyBaseLogger
  const mirror = new JournalMirror(truth, await JournalFolder.open(dir), log)
  mirror.start()
  return { store: mirror.store, stop: () => mirror.stop(), warnings }
}

export const chunk = (claim: Claim, firstSeq: number, events: readonly RuntimeEvent[]): LogChunk => {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  const lines = events.map((event) => encoder.line(event))
  return { firstSeq, count: lines.length, lines: Buffer.from(lines.join('')) }
}
export const text = (words: string): RuntimeEvent => ({ type: 'assistant', text: words, delta: true })

export async function begin(store: RunStore, runId: string, sessionId: string, fresh = true): Promise<Claim> {
  const create = { name: 'writer', id: 'prof_1', runtime: 'general', limits: {} } as Profile
  const outcome = await store.start({
    tenantId: 'acme',
    runId,
    sessionId,
    task: { profile: 'writer', prompt: `Write ${runId}` },
    ...(fresh ? { create: { profile: create } } : {}),
  })
  return (outcome as StartOutcome & { kind: 'started' }).claim
}

/** Ends a run with a `result` event behind `after`. */
export const finish = (store: RunStore, claim: Claim, after: number): Promise<boolean> =>
  store.finish({
    claim,
    status: 'ok',
    sessionStatus: 'idle',
    result: 'Done.',
    tail: chunk(claim, after + 1, [{ type: 'result', text: 'Done.', finishReason: 'stop' }]),
  })

export const pathOf = (dir: string, runId: string): string => join(dir, 'acme', `${runId}.jsonl`)

export async function linesOf(dir: string, runId: string): Promise<Record<string, unknown>[]> {
  const content = await readFile(pathOf(dir, runId), 'utf8')
  return content
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

/** The bytes of a run's log, as the store has them. */
export async function logOf(store: RunStore, runId: string): Promise<string> {
  let bytes = ''
  for (let after = 0; ;) {
    const page = await store.readLog('acme', runId, after)
    if (!page || page.chunks.length === 0) return bytes
    for (const part of page.chunks) {
      bytes += part.lines.toString()
      after = part.firstSeq + part.count - 1
    }
  }
}
