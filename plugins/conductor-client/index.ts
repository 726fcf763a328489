import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Settings, isAppError } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { limitErrors } from '#contracts/limits'
import { RunDispatch, type DispatchTask, type StartedRun } from '#contracts/runs'
import { Signers } from '#contracts/signing'
import { followTls, PeerTls, type LinesAnswer, type Peer, retry } from '#kit'
import { conductorAddress, conductorErrors, conductorPeers, ConductorLost, meaningOf, unexpected } from './peer.ts'
import { setTimeout as sleep } from 'node:timers/promises'
import { hasStamp, isTerminalType, logDeletedStage, type LogChunk, parseLine, peekType } from '#contracts/run-event'
import { conductorWire, sessionIdHeader } from '#contracts/wire/conductor'

/** Submits and follows runs of a conductor in another process, over its signed internal listener. */
export default definePlugin({
  name: 'conductor-client',
  config: Settings({
    url: Type.String({ description: "CONDUCTOR_INTERNAL_URL: the conductor's private address." }),
    forbiddenDomains: CommaList(
      'Further public domains of your hosting platform, which must not be the address of the conductor.',
    ),
    privateDomains: CommaList('Domains of your private network whose names look like public ones.'),
    publicHost: Type.Optional(
      Type.String({
        description: 'CHAT_GATEWAY_PUBLIC_HOST: a name of the gateway itself must not count as a private host either.',
      }),
    ),
    tls: PeerTls,
  }),
  errors: [conductorErrors, limitErrors],
  requires: { signers: Signers },
  provides: { dispatch: RunDispatch, checks: ReadinessChecks },
  async setup({ config, deps, log, onStop }) {
    const address = conductorAddress(config.url, {
      forbidden: config.forbiddenDomains,
      internal: config.privateDomains,
      publicHost: config.publicHost,
    })
    const signer = deps.signers.get('chat-gateway')
    if (!signer) {
      throw new Error(
        'requests to the conductor cannot be signed: set CHAT_GATEWAY_SIGNING_KEY_CURRENT to the same key as on the conductor',
      )
    }
    const peers = conductorPeers(signer, { tls: followTls(config.tls, log) })
    onStop(() => peers.close())
    const dispatch = createRemoteDispatch(peers.at(address.href), {
      conductor_internal_url: address.href,
      previous_signing_key: signer.hasPreviousKey ?? false,
    })
    return { dispatch, checks: { conductor: () => dispatch.ping() } }
  },
})

/** A dispatch is tried again for this long: a conductor that restarts, and a chat that survives it, are worth a person's wait. */
const defaultPatienceMs = 10_000
const dispatchWaits = { firstMs: 100, longestMs: 800 }
/** How long a question with a short answer may take. */
const questionMs = 5_000

/** Runs of a conductor in another process, over its signed internal listener. Specification 5.3. */
export function createRemoteDispatch(
  conductor: Peer,
  about: Readonly<Record<string, unknown>>,
  patienceMs = defaultPatienceMs,
): RunDispatch {
  /** Same id in every attempt: after a lost answer the conductor attaches to the run that exists. */
  const submit = async (
    tenant: string,
    body: DispatchTask,
    after: number,
    signal: AbortSignal,
  ): Promise<LinesAnswer> => {
    const query = after > 0 ? { after } : {}
    // Once an attempt may have started the run, a later failure is no proof that there is none.
    let begun = false
    const attempt = async (): Promise<LinesAnswer> => {
      try {
        return await conductor.ask(conductorWire.start, { tenant, body, query, signal })
      } catch (error) {
        begun ||= isAppError(error) && !meaningOf(error).retryable
        throw error
      }
    }
    const passes = (error: unknown): boolean =>
      error instanceof ConductorLost || (isAppError(error) && meaningOf(error).retryable)
    // For a caller from memory the gateway tries again itself, after reading the caller anew: such a failure then shows sooner.
    const mayPass = (error: unknown): boolean => passes(error) && (begun || body.chat?.admission === undefined)
    try {
      return await retry(attempt, { ...dispatchWaits, withinMs: patienceMs, signal, mayPass })
    } catch (error) {
      signal.throwIfAborted()
      if (passes(error)) throw conductorErrors.upstream({ cause: error, retryable: !begun })
      throw isAppError(error) ? meaningOf(error) : error
    }
  }

  const find: RunDispatch['find'] = (tenant, id) =>
    answered(
      conductor.ask(conductorWire.find, { tenant, params: { id }, query: { events: false }, timeoutMs: questionMs }),
    )

  return {
    about,
    async start(tenantId, task, afterSeq, signal): Promise<StartedRun> {
      const first = await submit(tenantId, task, afterSeq, signal)
      const sessionId = first.headers[sessionIdHeader]
      if (typeof sessionId !== 'string') throw unexpected({ message: 'The conductor named no session.' })
      const events = follow(conductor, { tenantId, runId: task.id, afterSeq, signal, first })
      return { runId: task.id, sessionId, status: 'running', events }
    },
    follow: (tenantId, runId, afterSeq, signal) => follow(conductor, { tenantId, runId, afterSeq, signal }),
    find,
    async cancel(tenant, id) {
      // A run that the conductor does not know is not under way.
      await answered(conductor.ask(conductorWire.cancel, { tenant, params: { id }, timeoutMs: questionMs }))
    },
    // It asks for a run that cannot exist: the answer proves the network, the keys and the conductor's database in one request.
    async ping() {
      await find('default', 'readiness')
    },
  }
}

/** Turns every failure of a request into what it means to a client of the gateway. */
const answered = <T>(question: Promise<T>): Promise<T> =>
  question.catch((cause: unknown) => {
    throw isAppError(cause) ? meaningOf(cause) : conductorErrors.upstream({ cause })
  })

/** A conductor that restarts is waited for this long. */
const giveUpMs = 60_000
const followPauseMs = { first: 100, longest: 2_000 }

interface FollowOptions {
  readonly tenantId: string
  readonly runId: string
  readonly afterSeq: number
  readonly signal: AbortSignal
  /** An answer whose lines are this log already. */
  readonly first?: LinesAnswer
  /** Milliseconds without any progress after which it gives up; tests shorten it. */
  readonly giveUpMs?: number
}

/** A run's log, each event once and in order, over as many connections as it takes. */
export async function* follow(conductor: Peer, options: FollowOptions): AsyncGenerator<LogChunk> {
  const { tenantId: tenant, runId, signal } = options
  const patience = options.giveUpMs ?? giveUpMs
  let cursor = options.afterSeq
  let pause = followPauseMs.first
  let stuckSince: number | undefined
  for (let log = options.first; ; log = undefined) {
    const openedAt = performance.now()
    let failure: unknown
    try {
      const query = { after: cursor }
      log ??= await conductor.ask(conductorWire.events, { tenant, params: { id: runId }, query, signal })
      for await (const lines of log.lines) {
        const chunk = chunkOf(lines, runId, cursor + 1)
        const over = isOver(lines)
        cursor += chunk.count
        stuckSince = undefined
        pause = followPauseMs.first
        // The reader of this generator leaves at the terminal event.
        if (over) log.expectEnd()
        yield chunk
        if (over) return
      }
    } catch (error) {
      signal.throwIfAborted()
      if (!isTransient(error)) throw isAppError(error) ? meaningOf(error) : error
      failure = error
    }
    // A stream that lasted, and then ended in order (its conductor is stopping) or was only silent, does not count as a failure.
    const now = performance.now()
    const quiet = failure === undefined || (failure instanceof ConductorLost && failure.silent)
    stuckSince = quiet && now - openedAt > followPauseMs.longest ? undefined : (stuckSince ?? now)
    if (stuckSince !== undefined && now - stuckSince >= patience) throw conductorErrors.upstream({ cause: failure })
    await sleep(pause, undefined, { signal })
    pause = Math.min(pause * 2, followPauseMs.longest)
  }
}

const isTransient = (error: unknown): boolean =>
  error instanceof ConductorLost || error instanceof OutOfOrder || (isAppError(error) && error.retryable)

class OutOfOrder extends Error {}

/**
 * Lines as a chunk that begins with `firstSeq`; a log that goes on with anything else is asked for again. But the ending is
 * told to whoever is past it too, under its own number.
 */
function chunkOf(lines: Buffer, runId: string, firstSeq: number): LogChunk {
  let count = 0
  const end = lines.indexOf(0x0a)
  for (let at = end; at >= 0; at = lines.indexOf(0x0a, at + 1)) count++
  const first = end < 0 ? lines : lines.subarray(0, end)
  if (first.length === 0 || hasStamp(first, runId, firstSeq)) return { firstSeq, count, lines }
  const line = parseLine(first)
  const seq = Number(line?.['seq'])
  const isEnding = count === 1 && seq < firstSeq && isTerminalType(peekType(first))
  // What was before it was deleted by age.
  const isCut = seq > firstSeq && line?.['stage'] === logDeletedStage
  if (seq !== firstSeq && !isEnding && !isCut) throw new OutOfOrder(`expected event ${firstSeq}`)
  return { firstSeq: seq, count, lines }
}

function isOver(lines: Buffer): boolean {
  const end = lines.length - 1
  return isTerminalType(peekType(lines.subarray(end > 0 ? lines.lastIndexOf(0x0a, end - 1) + 1 : 0, end)))
}
