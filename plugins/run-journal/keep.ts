import { unavailable } from '#kernel'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import type { JournalFile } from './file.ts'
import { complete, headerOf, keyOf, type RunKey } from './files.ts'
import type { Folder } from './folder.ts'

/** A store whose runs outlive its process: each write is in the run's file before the store has it. */
export function keepRuns(store: RunStore, folder: Folder): RunStore {
  const open = new Map<string, JournalFile>()
  const turns = new Map<string, Promise<unknown>>()
  /** One write of a run after the other, so that an end that is being written cannot be overtaken by another one. */
  const inTurn = <T>(run: RunKey, work: () => Promise<T>): Promise<T> => {
    const key = keyOf(run)
    const turn = (turns.get(key) ?? Promise.resolve()).then(work, work)
    turns.set(key, turn)
    const over = (): void => {
      if (turns.get(key) === turn) turns.delete(key)
    }
    turn.then(over, over)
    return turn
  }
  const begin = async (claim: Claim): Promise<void> => {
    const run = await store.findRun(claim.tenantId, claim.runId)
    if (run) open.set(keyOf(claim), await folder.create(await headerOf(store, claim.tenantId, run)))
  }
  const finish = async (run: FinishRun): Promise<boolean> => {
    const { claim, tail, status, error, usage } = run
    const file = open.get(keyOf(claim))
    if (!file) return store.finish(run)
    if (tail) await file.append(tail)
    const finishedAt = new Date().toISOString()
    await file.finish({ status, finishedAt, ...(error ? { error } : {}), ...(usage ? { usage } : {}) })
    await folder.sync(claim.tenantId)
    open.delete(keyOf(claim))
    return store.finish(run)
  }
  /** A run without a file is not begun. */
  const begun = async <T extends { kind: string; claim?: Claim }>(outcome: T): Promise<T> => {
    const { claim } = outcome
    if (!claim) return outcome
    try {
      await inTurn(claim, () => begin(claim))
    } catch (cause) {
      const reason = { code: 'unavailable', message: 'The log of the run could not be written.' }
      await store.steal(claim.tenantId, claim.runId, 'error', reason)
      throw unavailable({ cause, message: reason.message, retryable: true })
    }
    return outcome
  }
  return {
    ...store,
    start: async (run) => begun(await store.start(run)),
    claimNext: async (tenantId, sessionId) => begun(await store.claimNext(tenantId, sessionId)),
    append: (claim, chunk) =>
      inTurn(claim, async () => {
        await open.get(keyOf(claim))?.append(chunk)
        return store.append(claim, chunk)
      }),
    retry: (claim, attempt, chunk) =>
      inTurn(claim, async () => {
        await open.get(keyOf(claim))?.append(chunk)
        return store.retry(claim, attempt, chunk)
      }),
    finish: (run) => inTurn(run.claim, () => finish(run)),
    steal: (tenantId, runId, status, reason) =>
      inTurn({ tenantId, runId }, async () => {
        const key = keyOf({ tenantId, runId })
        const stolen = await store.steal(tenantId, runId, status, reason)
        if (!stolen) return false
        // The former holder finds no file any more: its late result cannot stand behind this end.
        await open.get(key)?.close()
        open.delete(key)
        await complete(store, folder, { tenantId, runId })
        return true
      }),
  }
}
