import { lastSeqOf } from '#contracts/log-chunk'
import type { RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/runs'
import type { RunLog } from './run-log.ts'

/** The events of a run as they are in this instant: from memory when this process executes it, else from the store. */
export async function* eventsSoFar(
  store: RunStore,
  live: RunLog | undefined,
  tenantId: string,
  runId: string,
): AsyncGenerator<LogChunk> {
  if (live) {
    const last = live.lastSeq
    const never = new AbortController()
    for await (const chunk of live.follow(0, never.signal)) {
      yield chunk
      if (lastSeqOf(chunk) >= last) return
    }
    return
  }
  for (let cursor = 0; ;) {
    const page = await store.readLog(tenantId, runId, cursor)
    const end = page?.chunks.at(-1)
    if (!page || !end) return
    yield* page.chunks
    cursor = lastSeqOf(end)
  }
}
