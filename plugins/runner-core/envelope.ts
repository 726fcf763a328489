import type { RunEnvelope } from '#contracts/run-envelope'
import type { ExecuteRun } from '#contracts/runner'
import type { Held } from './sessions.ts'

/** What a sidecar is told of a run, `elapsedMs` after the run was taken. */
export function envelopeOf(
  session: Held,
  run: ExecuteRun,
  options: { readonly firstSeq: number; readonly elapsedMs: number; readonly sessionMcpUrl: string | undefined },
): RunEnvelope {
  const { firstSeq, elapsedMs, sessionMcpUrl } = options
  const handle = run.runtimeSessionId ?? session.runtimeSessionId
  return {
    runId: run.runId,
    sessionId: session.id,
    tenantId: session.tenantId,
    profile: session.profile,
    prompt: run.prompt,
    ...(run.metadata ? { metadata: run.metadata } : {}),
    ...(sessionMcpUrl === undefined ? {} : { sessionMcpUrl }),
    ...(handle === undefined ? {} : { runtimeSessionId: handle }),
    ...(session.conversation ? { resume: true } : {}),
    firstSeq,
    timeoutMs: Math.max(1, run.timeoutMs - elapsedMs),
    ...(run.attachments ? { attachments: run.attachments } : {}),
    ...(run.responseFormat ? { responseFormat: run.responseFormat } : {}),
    ...(run.mcpServers ? { mcpServers: run.mcpServers } : {}),
    ...(run.attempt === undefined ? {} : { attempt: run.attempt }),
    ...(run.replay === undefined ? {} : { replay: run.replay }),
  }
}
