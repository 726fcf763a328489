import type { JournalHeader } from '#contracts/run-journal'
import type { RunStore } from '#contracts/run-store'
import type { RunSummary, TerminalRunStatus } from '#contracts/runs'
import type { JournalFile } from './file.ts'
import type { Folder } from './folder.ts'

export interface RunKey {
  readonly tenantId: string
  readonly runId: string
}
export const keyOf = ({ tenantId, runId }: RunKey): string => `${tenantId}\n${runId}`

/** The header of a run that the store knows; the snapshot goes with the run that created the session. */
export async function headerOf(store: RunStore, tenantId: string, run: RunSummary): Promise<JournalHeader> {
  const { runId, sessionId, startedAt, subTask } = run
  const { profile, prompt, metadata } = subTask
  const task = {
    profile,
    prompt,
    ...(metadata === undefined ? {} : { metadata: metadata as Record<string, unknown> }),
  }
  const first = (await store.getSession(tenantId, sessionId))?.runCount === 1
  const session = first ? await store.findSession(tenantId, sessionId) : undefined
  return { tenantId, runId, sessionId, task, startedAt, ...(session ? { create: session.profile } : {}) }
}

/** Adds what the store has of a run and the file has not. */
export async function catchUp(store: RunStore, file: JournalFile, { tenantId, runId }: RunKey): Promise<void> {
  for (;;) {
    const page = await store.readLog(tenantId, runId, file.lastSeq)
    const before = file.lastSeq
    for (const chunk of page?.chunks ?? []) await file.append(chunk)
    if (file.lastSeq === before) return
  }
}

/** Brings a file to the end that its run has in the store. False: the run is not over yet. */
export async function complete(store: RunStore, folder: Folder, key: RunKey): Promise<boolean> {
  const run = await store.findRun(key.tenantId, key.runId)
  // A file of another database: there is nothing to complete it with.
  if (!run) return true
  if (run.finishedAt === undefined) return false
  const reopened = await folder.reopen(key.tenantId, key.runId)
  if (reopened?.found.finish) {
    await reopened.close()
    return true
  }
  const file = reopened ? await reopened.resume() : await folder.create(await headerOf(store, key.tenantId, run))
  try {
    await catchUp(store, file, key)
    await file.finish({
      status: run.status as TerminalRunStatus,
      finishedAt: run.finishedAt,
      ...(run.error ? { error: run.error } : {}),
      ...(run.usage ? { usage: run.usage } : {}),
    })
    await folder.sync(key.tenantId)
  } catch (error) {
    await file.close().catch(() => {})
    throw error
  }
  return true
}
