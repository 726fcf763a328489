import type { FastifyBaseLogger } from 'fastify'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/run-event'
import type { JournalFile } from './file.ts'
import { catchUp, complete, headerOf, keyOf, type RunKey } from './files.ts'
import type { Folder } from './folder.ts'

/** How often files that are behind their store are looked at: a run that was taken from this process ends elsewhere. */
const mendMs = 2_000

export interface Mirror {
  readonly store: RunStore
  /** Completes the files that an earlier process left, and goes on to mend what falls behind. */
  start(): void
  stop(): Promise<void>
}

/** Writes what the store has accepted to files. A file that cannot be written is a warning, and is mended later; a run never fails for it. */
export function createMirror(store: RunStore, folder: Folder, log: FastifyBaseLogger): Mirror {
  const open = new Map<string, Promise<JournalFile | undefined>>()
  const behind = new Map<string, RunKey>()
  let timer: NodeJS.Timeout | undefined
  let mending: Promise<void> | undefined

  const giveUp = (key: RunKey, err?: unknown): undefined => {
    const file = open.get(keyOf(key))
    open.delete(keyOf(key))
    behind.set(keyOf(key), { tenantId: key.tenantId, runId: key.runId })
    void file?.then((f) => f?.close()).catch(() => {})
    if (err !== undefined)
      log.warn({ err, runId: key.runId }, 'the file of a run could not be written; it is mended later')
  }
  /** The file of a run that this process executes; made with its first events, wherever the claim came from. */
  const fileOf = (claim: Claim): Promise<JournalFile | undefined> => {
    const make = async (): Promise<JournalFile | undefined> => {
      try {
        const reopened = await folder.reopen(claim.tenantId, claim.runId)
        if (reopened) return await reopened.resume()
        const run = await store.findRun(claim.tenantId, claim.runId)
        return run && (await folder.create(await headerOf(store, claim.tenantId, run)))
      } catch (err) {
        return giveUp(claim, err)
      }
    }
    const key = keyOf(claim)
    const file = open.get(key) ?? make()
    open.set(key, file)
    return file
  }
  const add = async (claim: Claim, chunk: LogChunk | undefined): Promise<JournalFile | undefined> => {
    if (behind.has(keyOf(claim))) return undefined
    const file = await fileOf(claim)
    try {
      // Another process may have begun this run: its events are in the store.
      if (file && chunk && chunk.firstSeq > file.lastSeq + 1) await catchUp(store, file, claim)
      if (chunk) await file?.append(chunk)
      return file
    } catch (err) {
      return giveUp(claim, err)
    }
  }
  const end = async ({ claim, tail, status, error, usage }: FinishRun): Promise<void> => {
    const file = await add(claim, tail)
    if (!file) return
    const finishedAt = new Date().toISOString()
    try {
      await file.finish({ status, finishedAt, ...(error ? { error } : {}), ...(usage ? { usage } : {}) })
      open.delete(keyOf(claim))
      await folder.sync(claim.tenantId)
    } catch (err) {
      giveUp(claim, err)
    }
  }
  const mend = async (): Promise<void> => {
    for (const [key, run] of behind) {
      try {
        if (await complete(store, folder, run)) behind.delete(key)
      } catch (err) {
        log.warn({ err, runId: run.runId }, 'the file of a run could not be mended yet')
      }
    }
  }
  const find = async (): Promise<void> => {
    for await (const { finished, ...run } of folder.list()) {
      if (!finished && !open.has(keyOf(run))) behind.set(keyOf(run), run)
    }
  }
  const turn = (work: () => Promise<void>): void => {
    mending ??= work()
      .catch((err: unknown) => log.warn({ err }, 'the files of runs could not be looked through'))
      .finally(() => {
        mending = undefined
        timer = setTimeout(() => turn(mend), mendMs).unref()
      })
  }
  return {
    store: {
      ...store,
      async append(claim, chunk) {
        const owned = await store.append(claim, chunk)
        if (owned) await add(claim, chunk)
        else giveUp(claim)
        return owned
      },
      async retry(claim, attempt, chunk) {
        const owned = await store.retry(claim, attempt, chunk)
        if (owned) await add(claim, chunk)
        else giveUp(claim)
        return owned
      },
      async finish(run) {
        const ended = await store.finish(run)
        if (ended) await end(run)
        else giveUp(run.claim)
        return ended
      },
    },
    start: () => turn(async () => find().then(mend)),
    async stop() {
      await mending
      clearTimeout(timer)
      await Promise.all([...open.values()].map(async (file) => (await file)?.close())).catch(() => {})
    },
  }
}
