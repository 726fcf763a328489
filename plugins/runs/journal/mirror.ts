import type { FastifyBaseLogger } from 'fastify'
import { tenantKey } from '#contracts/ids'
import type { LogChunk } from '#contracts/run-event'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import type { RunSummary, TerminalRunStatus } from '#contracts/runs'
import type { JournalFile, JournalFinish, JournalHeader, Shown } from './file.ts'
import type { JournalFolder, RunKey } from './folder.ts'

/** How often incomplete files are completed from the store. A run that was taken from this process ends elsewhere. */
const mendMs = 2_000

export const keyOf = ({ tenantId, runId }: RunKey): string => tenantKey(tenantId, runId)

/** The part of the store from which files are made and completed. */
type Source = Pick<RunStore, 'getSession' | 'findSession' | 'readLog'>

/** The journal header of a stored run. The profile snapshot is included for the run that created the session. */
export async function headerOf(store: Source, tenantId: string, run: RunSummary): Promise<JournalHeader> {
  const { runId, sessionId, startedAt, subTask, parent, queuedAt } = run
  const { profile, prompt, attachments, responseFormat } = subTask
  const shown: Shown = {
    ...(attachments ? { attachments } : {}),
    ...(responseFormat ? { responseFormat } : {}),
    ...(parent ? { parent } : {}),
    ...(queuedAt === undefined ? {} : { queuedAt }),
  }
  const metadata = subTask.metadata as Record<string, unknown> | undefined
  const task = { profile, prompt, ...(metadata === undefined ? {} : { metadata }) }
  const first = (await store.getSession(tenantId, sessionId))?.runCount === 1
  const session = first ? await store.findSession(tenantId, sessionId) : undefined
  const more = { ...(Object.keys(shown).length > 0 ? { shown } : {}), ...(session ? { create: session.profile } : {}) }
  return { tenantId, runId, sessionId, task, startedAt, ...more }
}

/** The finish line for the way in which a run ended. */
export const endingOf = (
  { status, error, usage }: Pick<FinishRun, 'status' | 'error' | 'usage'>,
  { finishedAt = new Date().toISOString(), attempt = 1 }: Pick<RunSummary, 'finishedAt' | 'attempt'> = {},
): JournalFinish => ({
  status,
  finishedAt,
  ...(attempt > 1 ? { attempt } : {}),
  ...(error ? { error } : {}),
  ...(usage ? { usage } : {}),
})

/** Appends the events that the store has and the file lacks. */
async function catchUp(store: Source, file: JournalFile, { tenantId, runId }: RunKey): Promise<void> {
  for (;;) {
    const page = await store.readLog(tenantId, runId, file.lastSeq)
    const before = file.lastSeq
    for (const chunk of page?.chunks ?? []) await file.append(chunk)
    if (file.lastSeq === before) return
  }
}

/** Completes a file to the stored end of its run, and closes it. */
export async function complete(store: Source, folder: JournalFolder, file: JournalFile, run: RunSummary) {
  const { tenantId } = file.header
  try {
    if (file.ending) return await file.close()
    await catchUp(store, file, file.header)
    await file.finish(endingOf({ ...run, status: run.status as TerminalRunStatus }, run))
    await folder.sync(tenantId)
  } catch (error) {
    await file.close().catch(() => {})
    throw error
  }
}

/** Copies what the store accepts into files. A file that cannot be written causes a warning and is repaired later; it never fails a run. */
export class JournalMirror {
  /** The wrapped store: every write that the store accepts is in the run's file before the call answers. */
  readonly store: RunStore
  readonly #truth: RunStore
  readonly #folder: JournalFolder
  readonly #log: FastifyBaseLogger
  readonly #open = new Map<string, Promise<JournalFile | undefined>>()
  readonly #behind = new Map<string, RunKey>()
  #timer: NodeJS.Timeout | undefined
  #mending: Promise<void> | undefined

  /** `truth` must be a plain object, because its methods are copied. */
  constructor(truth: RunStore, folder: JournalFolder, log: FastifyBaseLogger) {
    this.#truth = truth
    this.#folder = folder
    this.#log = log
    this.store = {
      ...truth,
      discard: (claim) => this.#discarded(claim, truth.discard(claim)),
      append: (claim, chunk) => this.#written(claim, truth.append(claim, chunk), chunk),
      retry: (claim, attempt, chunk) => this.#written(claim, truth.retry(claim, attempt, chunk), chunk),
      finish: (run) => this.#written(run.claim, truth.finish(run), run.tail, run),
    }
  }
  /** Completes the files that an earlier process left, and then periodically those that fall behind. */
  start(): void {
    this.#turn(async () => {
      for await (const run of this.#folder.unfinished()) {
        if (!this.#open.has(keyOf(run))) this.#behind.set(keyOf(run), run)
      }
      await this.#mend()
    })
  }
  async stop(): Promise<void> {
    await this.#mending
    clearTimeout(this.#timer)
    await Promise.all([...this.#open.values()].map(async (file) => (await file)?.close())).catch(() => {})
  }

  /** Writes to the file what the store has accepted. If the store refused, another process holds the claim. */
  async #written(claim: Claim, accepted: Promise<boolean>, chunk?: LogChunk, end?: FinishRun): Promise<boolean> {
    const owned = await accepted
    if (!owned) this.#giveUp(claim)
    else if (!this.#behind.has(keyOf(claim))) await this.#write(claim, chunk, end)
    return owned
  }
  async #discarded(claim: Claim, accepted: Promise<boolean>): Promise<boolean> {
    const gone = await accepted
    const file = gone ? await this.#open.get(keyOf(claim))?.catch(() => undefined) : undefined
    if (!file) return gone
    this.#open.delete(keyOf(claim))
    await this.#folder.remove(file).catch((err: unknown) => {
      this.#log.warn({ err, runId: claim.runId }, 'the file of a run that was taken back is left')
    })
    return gone
  }
  async #write(claim: Claim, chunk: LogChunk | undefined, end: FinishRun | undefined): Promise<void> {
    const key = keyOf(claim)
    try {
      const opening = this.#open.get(key) ?? this.#fileOf(claim)
      this.#open.set(key, opening)
      const file = await opening
      // Another process may have begun this run. Its events are in the store, so copy them first.
      if (file && chunk && chunk.firstSeq > file.lastSeq + 1) await catchUp(this.#truth, file, claim)
      if (chunk) await file?.append(chunk)
      if (!file || !end) return
      // The time of the end is the store's.
      await file.finish(endingOf(end, await this.#truth.findRun(claim.tenantId, claim.runId)))
      this.#open.delete(key)
      await this.#folder.sync(claim.tenantId)
    } catch (err) {
      this.#giveUp(claim)
      this.#log.warn({ err, runId: claim.runId }, 'the file of a run could not be written; it is repaired later')
    }
  }
  /** The file of a run that this process executes. It is created with the run's first events, wherever the claim came from. */
  async #fileOf(claim: Claim): Promise<JournalFile | undefined> {
    const reopened = await this.#folder.reopen(claim)
    if (reopened) return reopened
    const run = await this.#truth.findRun(claim.tenantId, claim.runId)
    return run && this.#folder.create(await headerOf(this.#truth, claim.tenantId, run))
  }
  #giveUp({ tenantId, runId }: RunKey): void {
    const key = tenantKey(tenantId, runId)
    const file = this.#open.get(key)
    this.#open.delete(key)
    this.#behind.set(key, { tenantId, runId })
    void file?.then((one) => one?.close()).catch(() => {})
  }
  async #mend(): Promise<void> {
    for (const [key, run] of this.#behind) {
      try {
        if (await this.#complete(run)) this.#behind.delete(key)
      } catch (err) {
        this.#log.warn({ err, runId: run.runId }, 'the file of a run could not be repaired yet')
      }
    }
  }
  /** False: the run is not over yet. */
  async #complete({ tenantId, runId }: RunKey): Promise<boolean> {
    const run = await this.#truth.findRun(tenantId, runId)
    // The file belongs to another database, so there is nothing to complete it from.
    if (!run) return true
    if (run.finishedAt === undefined) return false
    const reopened = await this.#folder.reopen({ tenantId, runId })
    const has = reopened?.lastSeq ?? 0
    const [next] = (await this.#truth.readLog(tenantId, runId, has))?.chunks ?? []
    // Retention has deleted the log, and the file goes with it.
    if (next && next.firstSeq > has + 1) {
      await reopened?.close()
      return true
    }
    const file = reopened ?? (await this.#folder.create(await headerOf(this.#truth, tenantId, run)))
    await complete(this.#truth, this.#folder, file, run)
    return true
  }
  #turn(work: () => Promise<void>): void {
    this.#mending ??= work()
      .catch((err: unknown) => this.#log.warn({ err }, 'the files of runs could not be scanned'))
      .finally(() => {
        this.#mending = undefined
        this.#timer = setTimeout(() => this.#turn(() => this.#mend()), mendMs).unref()
      })
  }
}
