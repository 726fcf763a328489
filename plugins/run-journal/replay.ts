import { createEventEncoder, parseLine } from '#contracts/run-event'
import type { JournaledRun, JournalFinish } from '#contracts/run-journal'
import type { TerminalRunStatus } from '#contracts/runs'
import type { Reopened } from './file.ts'
import type { Folder } from './folder.ts'

const interrupted = { code: 'interrupted', message: 'The server that executed this run went away before it ended.' }

/** Reads every run, oldest first. A run that was under way ends here: the process that executed it is gone. */
export async function* replay(folder: Folder): AsyncGenerator<JournaledRun> {
  const runs: { readonly tenantId: string; readonly runId: string; readonly startedAt: string }[] = []
  for await (const { tenantId, runId } of folder.list()) {
    const file = await folder.reopen(tenantId, runId)
    if (file) runs.push({ tenantId, runId, startedAt: file.found.header.startedAt })
    await file?.close()
  }
  runs.sort((a, b) => (a.startedAt < b.startedAt ? -1 : a.startedAt > b.startedAt ? 1 : 0))
  for (const { tenantId, runId } of runs) {
    const file = await folder.reopen(tenantId, runId)
    if (file) yield await finished(file)
  }
}

/** The run of a file, which has a terminal event and a finish line afterwards, whatever it had before. */
async function finished(file: Reopened): Promise<JournaledRun> {
  const { header, lastSeq, finish } = file.found
  let events = await file.events()
  const chunk = (count: number) => (count === 0 ? undefined : { firstSeq: 1, count, lines: events })
  if (finish) {
    await file.close()
    return { header, log: chunk(lastSeq), finish }
  }
  const end = endOf(events) ?? { status: 'interrupted' as const, error: interrupted, missing: true }
  const resumed = await file.resume()
  if (end.missing) {
    const line = createEventEncoder(header.runId, header.sessionId, lastSeq + 1).line({ type: 'error', ...interrupted })
    const lines = Buffer.from(line)
    await resumed.append({ firstSeq: lastSeq + 1, count: 1, lines })
    events = Buffer.concat([events, lines])
  }
  const made: JournalFinish = {
    status: end.status,
    finishedAt: new Date().toISOString(),
    ...(end.error ? { error: end.error } : {}),
  }
  await resumed.finish(made)
  return { header, log: chunk(resumed.lastSeq), finish: made }
}

/** The ending that the last event tells; undefined when it is not a terminal one. */
function endOf(
  events: Buffer,
): { status: TerminalRunStatus; error?: { code: string; message: string }; missing?: boolean } | undefined {
  const last = events.subarray(events.lastIndexOf(0x0a, events.length - 2) + 1, -1)
  const event = parseLine(last)
  if (event?.['type'] === 'result') return { status: 'ok' }
  if (event?.['type'] !== 'error') return undefined
  const code = String(event['code'])
  const status = code === 'cancelled' || code === 'interrupted' ? code : 'error'
  return { status, error: { code, message: String(event['message'] ?? '') } }
}
