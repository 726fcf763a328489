import { appError } from '#kernel'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import type { WorkerHub } from '#contracts/workers'

const unknownSession = appError('unknown_session', 404)
const noWorkers = appError('invalid or missing worker token: superseded', 401)

/** The session that a request is for, when its caller may use it. Specification 5.4. */
export type Admission = (authorization: string | undefined, sessionId: string) => Promise<RunnerSession>

/** Where the network is trusted: only a sandbox is not part of it, and shows the token of its worker. */
export const anySession =
  (sessions: RunnerSessions, hub: WorkerHub | undefined): Admission =>
  async (authorization, id) => {
    const session = liveSession(sessions, id)
    if (isSandboxed(session)) await authorize(hub, authorization, session)
    return session
  }

/** Where nobody is trusted: sessions without a sandbox do not exist there. */
export const sandboxSession =
  (sessions: RunnerSessions, hub: WorkerHub | undefined): Admission =>
  async (authorization, id) => {
    const session = liveSession(sessions, id)
    if (!isSandboxed(session)) throw unknownSession()
    await authorize(hub, authorization, session)
    return session
  }

const isSandboxed = ({ profile }: RunnerSession): boolean => profile.workerMode === 'sandbox'

/** Specification 3.1: the endpoint exists only while the session is idle or running. */
function liveSession(sessions: RunnerSessions, id: string): RunnerSession {
  const session = sessions.get(id)
  if (session?.status !== 'idle' && session?.status !== 'running') throw unknownSession()
  return session
}

async function authorize(
  hub: WorkerHub | undefined,
  authorization: string | undefined,
  { tenantId, id }: RunnerSession,
): Promise<void> {
  if (!hub) throw noWorkers()
  await hub.authorize(authorization, tenantId, id)
}
