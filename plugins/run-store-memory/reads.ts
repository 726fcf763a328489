import { after, endsLog, lastSeqOf } from '#contracts/log-chunk'
import type { RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/runs'
import { keyOf, type StoredRun, type StoredSession } from './stored.ts'

/** About what one read of a log returns. */
const readBytes = 1024 * 1024

export interface ReadsOf {
  /** Newest last. */
  readonly started: ReadonlyMap<string, StoredRun>
  readonly sessions: ReadonlyMap<string, StoredSession>
  readonly runOf: (tenantId: string, runId: string) => StoredRun | undefined
}

type Reads = Pick<
  RunStore,
  'findRun' | 'listRuns' | 'readLog' | 'readEnding' | 'runsOfSession' | 'getSession' | 'listSessions'
>

/** What only looks. */
export function createReads({ started, sessions, runOf }: ReadsOf): Reads {
  return {
    async findRun(tenantId, runId) {
      return runOf(tenantId, runId)?.summary
    },
    async listRuns(tenantId, filter) {
      const matching = [...started.values()]
        .filter(
          (run) =>
            run.tenantId === tenantId &&
            (filter.profile === undefined || run.summary.subTask.profile === filter.profile) &&
            (filter.sessionId === undefined || run.summary.sessionId === filter.sessionId) &&
            (filter.parent === undefined || run.summary.parent?.runId === filter.parent) &&
            (filter.status === undefined || run.summary.status === filter.status) &&
            (filter.from === undefined || Date.parse(run.summary.startedAt) >= Date.parse(filter.from)) &&
            (filter.to === undefined || Date.parse(run.summary.startedAt) < Date.parse(filter.to)),
        )
        .map((run) => run.summary)
        .toReversed()
      const from = filter.offset ?? 0
      return { runs: matching.slice(from, from + (filter.limit ?? matching.length)), total: matching.length }
    },
    async readLog(tenantId, runId, afterSeq) {
      const run = runOf(tenantId, runId)
      if (!run) return undefined
      const chunks: LogChunk[] = []
      let bytes = 0
      for (const chunk of run.log) {
        if (chunk.firstSeq + chunk.count <= afterSeq + 1) continue
        if (bytes >= readBytes) break
        bytes += chunk.lines.length
        chunks.push(chunk)
      }
      return { chunks, status: run.summary.status }
    },
    async readEnding(tenantId, runId) {
      const chunk = runOf(tenantId, runId)?.log.at(-1)
      return chunk && endsLog(chunk) ? after(chunk, lastSeqOf(chunk) - 1) : undefined
    },
    async runsOfSession(tenantId, sessionId, ordinal) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      if (!session) return undefined
      const runs = [...started.values()]
        .filter((run) => run.tenantId === tenantId && run.summary.sessionId === sessionId && run.ordinal > ordinal)
        .map((run) => ({ runId: run.summary.runId, ordinal: run.ordinal }))
        .sort((a, b) => a.ordinal - b.ordinal)
      return { runs: runs.slice(0, 100), status: session.dto.status }
    },
    async getSession(tenantId, sessionId) {
      return sessions.get(keyOf(tenantId, sessionId))?.dto
    },
    async listSessions(tenantId, filter) {
      const q = filter.q?.toLowerCase() ?? ''
      const matching = [...sessions]
        .filter(([key, { dto }]) => key === keyOf(tenantId, dto.id) && dto.status !== 'shutdown')
        .map(([, { dto }]) => dto)
        .filter((dto) => dto.id.toLowerCase().includes(q) || dto.profile.toLowerCase().includes(q))
        .sort((a, b) => (a.createdAt === b.createdAt ? (a.id < b.id ? 1 : -1) : a.createdAt < b.createdAt ? 1 : -1))
      const from = filter.offset ?? 0
      return { sessions: matching.slice(from, from + (filter.limit ?? matching.length)), total: matching.length }
    },
  }
}
