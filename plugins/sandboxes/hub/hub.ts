import { randomInt } from 'node:crypto'
import { workerTokenErrors } from '#contracts/workers'
import type { SessionMemory, WorkerHub } from '#contracts/workers'
import { createMailbox, WaitingTools } from './mailbox.ts'
import { CountedMemory } from './state.ts'
import { issueToken, nameOf, type WorkerClaims, type WorkerTokens } from './tokens.ts'
import { type Continued, RemoteWorker, type WorkerChannel, type RemoteWorkerOptions } from './worker.ts'

/** The largest range that `randomInt` takes. */
const generations = 2 ** 48 - 1

export interface Admitted {
  readonly worker: RemoteWorker
  /** When the token of the request expires, in ms since the epoch. */
  readonly expiresAt: number
}

/** The polling workers of a runner. */
export interface Hub extends WorkerHub {
  /**
   * Creates a new generation of the session's worker and closes the former channel. AppError as `WorkerTokens.mint`, or 503 `worker_token_failed`
   * when minting fails otherwise or gives no token.
   */
  open(tenantId: string, sessionId: string): Promise<WorkerChannel>
  /** The worker that makes a callback. AppError 401 unless it is the present generation of the session's worker. */
  admit(authorization: string | undefined, sessionId: string): Promise<Admitted>
  /** Whether a credential with this name is the newest token of the session's worker. */
  issued(name: string, sessionId: string): boolean
  /** Closes all channels when the runner stops. */
  close(): void
}

/** `memory` counts the states of workers. */
export function createHub(tokens: WorkerTokens, lostMs: number, memory: SessionMemory = new CountedMemory()): Hub {
  const workers = new Map<string, RemoteWorker>()
  const waitingTools = new WaitingTools()
  /** For a worker that was bound to another session: called when it first uses its new session id. */
  const arrivals = new WeakMap<RemoteWorker, () => void>()
  const forget = (worker: RemoteWorker): void => {
    if (workers.get(worker.sessionId) === worker) workers.delete(worker.sessionId)
  }
  const make = async (tenantId: string, options: Continued): Promise<RemoteWorker> => {
    const { sessionId } = options
    // Random instead of counted, so that a token from another runner, or from before a restart, never has the current generation.
    const generation = randomInt(1, generations)
    const token = await issueToken(tokens, { tenantId, sessionId, generation })
    const former = workers.get(sessionId)
    former?.close()
    const worker: RemoteWorker = new RemoteWorker({
      ...options,
      tenantId,
      generation,
      token,
      lostMs,
      memory,
      ...(former ? { stateRev: former.stateRev } : {}),
      bind,
      onClose() {
        arrivals.get(worker)?.()
        forget(worker)
      },
    })
    workers.set(sessionId, worker)
    return worker
  }
  /** The worker is known under both session ids until it acknowledges the command, because a lost answer to a poll is sent again. */
  const bind: RemoteWorkerOptions['bind'] = async (from, options) => {
    const worker = await make(from.tenantId, options)
    const { sessionId, mailbox } = options
    const command = mailbox.push({ kind: 'bind', sessionId, token: worker.token })
    arrivals.set(worker, () => {
      arrivals.delete(worker)
      mailbox.acknowledge(command)
      from.retire()
      forget(from)
    })
    return worker
  }
  const find = ({ tenantId, generation }: WorkerClaims, sessionId: string): RemoteWorker => {
    const worker = workers.get(sessionId)
    if (!worker) throw workerTokenErrors.superseded()
    if (worker.tenantId !== tenantId) throw workerTokenErrors.otherTenant()
    if (worker.generation !== generation) throw workerTokenErrors.superseded()
    arrivals.get(worker)?.()
    return worker
  }
  return {
    async open(tenantId, sessionId) {
      return make(tenantId, { sessionId, mailbox: createMailbox(tenantId, waitingTools) })
    },
    async authorize(authorization, tenantId, sessionId) {
      const claims = await tokens.verify(authorization)
      if (claims.sessionId !== sessionId) throw workerTokenErrors.otherSession()
      if (claims.tenantId !== tenantId) throw workerTokenErrors.otherTenant()
      find(claims, sessionId)
    },
    async admit(authorization, sessionId) {
      const claims = await tokens.verify(authorization)
      if (claims.sessionId !== sessionId) throw workerTokenErrors.otherSession()
      return { worker: find(claims, sessionId), expiresAt: claims.expiresAt }
    },
    issued(name, sessionId) {
      const worker = workers.get(sessionId)
      return worker !== undefined && nameOf(`Bearer ${worker.token}`) === name
    },
    close() {
      for (const worker of workers.values()) worker.close()
    },
  }
}
