import type { RunEnvelope } from '#contracts/run-envelope'
import { workerPaths } from '#contracts/wire/worker'

/** The envelope as its worker gets it: every address is the runner's, as the worker sees it, and every credential its own token. */
export function envelopeForWorker(envelope: RunEnvelope, runnerUrl: string, token: string): RunEnvelope {
  const { sessionMcpUrl, sessionMcpToken: _, mcpServers, ...rest } = envelope
  const base = runnerUrl.replace(/\/+$/, '')
  const paths = workerPaths(envelope.sessionId)
  return {
    ...rest,
    ...(sessionMcpUrl === undefined ? {} : { sessionMcpUrl: base + paths.sessionMcp, sessionMcpToken: token }),
    ...(mcpServers === undefined
      ? {}
      : {
          mcpServers: mcpServers.map(({ name }) => ({
            name,
            url: base + paths.mcpServer(name),
            headers: { authorization: `Bearer ${token}` },
          })),
        }),
  }
}
