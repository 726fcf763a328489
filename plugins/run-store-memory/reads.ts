import { endOf, type LogChunk } from '#contracts/run-event'
import type { Page, RunStore } from '#contracts/run-store'
import { isTerminal } from '#contracts/runs'
import { durableOf, type StoredRun, type StoredSession } from './stored.ts'

/** About what one read of a log returns. */
const readBytes = 1024 * 1024

/** What is in memory, by tenant and id. */
export interface Kept {
  run(tenantId: string, runId: string): StoredRun | undefined
  /** Newest last. */
  runs(tenantId: string): StoredRun[]
  session(tenantId: string, sessionId: string): StoredSession | undefined
  sessions(tenantId: string): StoredSession[]
}

const pageOf = <T>(all: readonly T[], { offset = 0, limit = all.length }: Page): T[] =>
  all.slice(offset, offset + limit)

/** What changes nothing. */
export const createReads = (kept: Kept) =>
  ({
    findRun: async (tenantId, runId) => kept.run(tenantId, runId)?.summary,
    async listRuns(tenantId, filter) {
      const { profile, sessionId, parent, status, from, to } = filter
      const matching = kept
        .runs(tenantId)
        .map((run) => run.summary)
        .filter(
          (run) =>
            (profile === undefined || run.subTask.profile === profile) &&
            (sessionId === undefined || run.sessionId === sessionId) &&
            (parent === undefined || run.parent?.runId === parent) &&
            (status === undefined || run.status === status) &&
            (from === undefined || Date.parse(run.startedAt) >= Date.parse(from)) &&
            (to === undefined || Date.parse(run.startedAt) < Date.parse(to)),
        )
        .toReversed()
      return { runs: pageOf(matching, filter), total: matching.length }
    },
    async readLog(tenantId, runId, afterSeq) {
      const run = kept.run(tenantId, runId)
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
      const chunk = kept.run(tenantId, runId)?.log.at(-1)
      return chunk && endOf(chunk)
    },
    async runsOfSession(tenantId, sessionId, after) {
      const session = kept.session(tenantId, sessionId)
      if (!session) return undefined
      const runs = kept
        .runs(tenantId)
        .filter(({ summary, ordinal }) => summary.sessionId === sessionId && ordinal > after)
        .map(({ summary, ordinal }) => ({ runId: summary.runId, ordinal }))
        .sort((a, b) => a.ordinal - b.ordinal)
      return { runs: runs.slice(0, 100), status: session.dto.status }
    },
    async *pastRuns({ tenantId, sessionId }) {
      const ofSession = kept.runs(tenantId).filter((run) => run.summary.sessionId === sessionId && run.ordinal > 0)
      yield ofSession.toReversed().flatMap(({ summary, input, log }) => {
        const { runId, status, subTask, usage } = summary
        if (!isTerminal(status)) return []
        const metadata = subTask.metadata as Record<string, unknown> | undefined
        return [{ runId, status, prompt: subTask.prompt, input, metadata, model: usage?.model, log: [...log] }]
      })
    },
    getSession: async (tenantId, sessionId) => kept.session(tenantId, sessionId)?.dto,
    async findSession(tenantId, sessionId) {
      const session = kept.session(tenantId, sessionId)
      return session && durableOf(session)
    },
    loadState: async (tenantId, sessionId) => kept.session(tenantId, sessionId)?.state,
    async listSessions(tenantId, filter) {
      const q = filter.q?.toLowerCase() ?? ''
      const matching = kept
        .sessions(tenantId)
        .map(({ dto }) => dto)
        .filter(({ id, profile, status }) => status !== 'shutdown' && `${id}\n${profile}`.toLowerCase().includes(q))
        .sort((a, b) => (a.createdAt === b.createdAt ? (a.id < b.id ? 1 : -1) : a.createdAt < b.createdAt ? 1 : -1))
      return { sessions: pageOf(matching, filter), total: matching.length }
    },
  }) satisfies Partial<RunStore>
