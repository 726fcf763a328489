import type { WorkerIdentity } from '#contracts/workers'

interface Given {
  readonly runnerUrl: string
  readonly sessionId: string
  readonly token: string
}

export function createIdentity(given: Given): WorkerIdentity {
  const runnerUrl = given.runnerUrl.replace(/\/+$/, '')
  let { sessionId, token } = given
  return {
    runnerUrl,
    get sessionId() {
      return sessionId
    },
    get token() {
      return token
    },
    renew(newer) {
      token = newer
    },
    bind(session, newer) {
      sessionId = session
      token = newer
    },
  }
}
