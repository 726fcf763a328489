import { linesOf, unavailable } from '#kernel'
import { endings } from '#contracts/endings'
import { createEventEncoder, type LogChunk, parseLine, peekType } from '#contracts/run-event'
import type { Claim, EndReason, FinishRun, StartRun } from '#contracts/run-store'
import type { TerminalRunStatus } from '#contracts/runs'
import type { JournalFile, JournalFinish } from '../journal/file.ts'
import type { JournalFolder, RunKey } from '../journal/folder.ts'
import { complete, endingOf, headerOf, keyOf } from '../journal/mirror.ts'
import { restoredRun } from './rows.ts'
import { MemoryRunStore, mostKept } from './store.ts'

const interrupted: EndReason = { code: 'interrupted', message: endings.interrupted.message }
const unwritten: EndReason = { code: 'unavailable', message: endings.unavailable.message }

/** A store whose runs outlive the process: each write reaches the run's file before it reaches memory. */
export class KeptRunStore extends MemoryRunStore {
  readonly #folder: JournalFolder
  readonly #open = new Map<string, JournalFile>()
  readonly #turns = new Map<string, Promise<unknown>>()

  private constructor(folder: JournalFolder) {
    super()
    this.#folder = folder
  }
  /** Opens the store with the files that an earlier process left. A run that was still under way is ended. */
  static async open(folder: JournalFolder): Promise<KeptRunStore> {
    const store = new KeptRunStore(folder)
    for (const run of (await folder.inOrder()).slice(-mostKept)) {
      const file = await folder.reopen(run)
      if (file) await store.#putBack(file)
    }
    return store
  }

  /** Closes the files. Runs under way stay open on disk, and the next start ends them. */
  async close(): Promise<void> {
    for (const file of this.#open.values()) await file.close().catch(() => {})
    this.#open.clear()
  }

  override async start(run: StartRun) {
    return this.#begun(await super.start(run))
  }
  override async claimNext(...next: Parameters<MemoryRunStore['claimNext']>) {
    return this.#begun(await super.claimNext(...next))
  }
  override discard(claim: Claim): Promise<boolean> {
    return this.#inTurn(claim, async () => {
      const gone = await super.discard(claim)
      const file = gone && this.#open.get(keyOf(claim))
      if (!file) return gone
      this.#open.delete(keyOf(claim))
      await this.#folder.remove(file)
      return true
    })
  }
  override append(claim: Claim, chunk: LogChunk): Promise<boolean> {
    return this.#inTurn(claim, async () => {
      await this.#open.get(keyOf(claim))?.append(chunk)
      return super.append(claim, chunk)
    })
  }
  override finish(run: FinishRun): Promise<boolean> {
    const { claim, tail } = run
    return this.#inTurn(claim, async () => {
      const file = this.#open.get(keyOf(claim))
      const { attempt = 1 } = (await this.findRun(claim.tenantId, claim.runId)) ?? {}
      const ending = endingOf(run, { attempt })
      if (file) {
        if (tail) await file.append(tail)
        await file.finish(ending)
        await this.#folder.sync(claim.tenantId)
        this.#open.delete(keyOf(claim))
      }
      return this.finishAt(run, ending.finishedAt)
    })
  }
  override steal(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean> {
    return this.#inTurn({ tenantId, runId }, async () => {
      const stolen = await super.steal(tenantId, runId, status, reason)
      const file = this.#open.get(keyOf({ tenantId, runId }))
      const run = stolen && file && (await this.findRun(tenantId, runId))
      if (!run) return stolen
      // Without an open file the former holder of the claim cannot write a late result after this end.
      this.#open.delete(keyOf({ tenantId, runId }))
      await complete(this, this.#folder, file, run)
      return true
    })
  }

  /** Serializes the writes of one run, so that a later write cannot overtake the end that is being written. */
  #inTurn<T>(run: RunKey, work: () => Promise<T>): Promise<T> {
    const key = keyOf(run)
    const turn = (this.#turns.get(key) ?? Promise.resolve()).then(work, work)
    this.#turns.set(key, turn)
    const over = (): void => {
      if (this.#turns.get(key) === turn) this.#turns.delete(key)
    }
    turn.then(over, over)
    return turn
  }
  /** A run whose file cannot be created is not begun. */
  async #begun<T extends { kind: string; claim?: Claim }>(outcome: T): Promise<T> {
    const { claim } = outcome
    if (!claim) return outcome
    const { tenantId, runId } = claim
    try {
      await this.#inTurn(claim, async () => {
        const run = await this.findRun(tenantId, runId)
        if (run) this.#open.set(keyOf(claim), await this.#folder.create(await headerOf(this, tenantId, run)))
      })
    } catch (cause) {
      await super.steal(tenantId, runId, 'error', unwritten)
      throw unavailable({ cause, message: unwritten.message, retryable: true })
    }
    return outcome
  }
  /** Restores the run of a file. Afterwards the file has a terminal event and a finish line, whatever it had before. */
  async #putBack(file: JournalFile): Promise<void> {
    const { tenantId, runId, sessionId, task, startedAt, create, shown = {} } = file.header
    const ending = file.ending ?? (await endOf(file))
    const tail = await file.events()
    if (file.ending) await file.close()
    else await file.finish(ending)
    const { finishedAt, status, attempt = 1, ...rest } = ending
    const sessionStatus = status === 'error' ? 'errored' : 'idle'
    const run = restoredRun({ tenantId, runId, sessionId, task }, { ...shown, attempt, startedAt })
    const end = { status, sessionStatus, tail, ...rest, ...said(tail) } as const
    this.restore(run, create && { profile: create }, end, finishedAt)
  }
}

/** The ending in the last event of the file. If the last event is not terminal, one is appended. */
async function endOf(file: JournalFile): Promise<JournalFinish> {
  const lines = (await file.events())?.lines
  const event = lines && parseLine(lines.subarray(lines.lastIndexOf(0x0a, lines.length - 2) + 1))
  if (event?.['type'] === 'result') return endingOf({ status: 'ok' })
  if (event?.['type'] === 'error') {
    const error = { code: String(event['code']), message: String(event['message'] ?? '') }
    const status = error.code === 'cancelled' || error.code === 'interrupted' ? error.code : 'error'
    return endingOf({ status, error })
  }
  const firstSeq = file.lastSeq + 1
  const { runId, sessionId } = file.header
  const line = createEventEncoder(runId, sessionId, firstSeq).line({ type: 'error', ...interrupted })
  await file.append({ firstSeq, count: 1, lines: Buffer.from(line) })
  return endingOf({ status: 'interrupted', error: interrupted })
}

/** The answer and the vendor's handle, from the events that carry them. */
function said(log: LogChunk | undefined): { result?: string; runtimeSessionId?: string } {
  const found: { result?: string; runtimeSessionId?: string } = {}
  for (const line of log ? linesOf(log.lines) : []) {
    const type = peekType(line)
    if (type === 'result') found.result = String(parseLine(line)?.['text'])
    else if (type === 'session_init') found.runtimeSessionId = String(parseLine(line)?.['runtimeSessionId'])
  }
  return found
}
