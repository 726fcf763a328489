import { Type } from '@sinclair/typebox'
import { collectDefaultMetrics, type Registry } from 'prom-client'
import {
  access,
  type App,
  definePlugin,
  errorBody,
  errorTable,
  operationsListener,
  plainText,
  Settings,
  isAppError,
} from '#kernel'
import { ReadinessChecks, type ReadinessCheck } from '#contracts/health'
import { answersAnyName } from '#kit'
import { recordEventLoop } from './event-loop.ts'
import type { FastifyBaseLogger } from 'fastify'

const listenerNames = (names: readonly string[], description: string) =>
  Type.Array(Type.String(), { default: [...names], description })

const healthErrors = errorTable('health', {
  notReady: {
    status: 503,
    retry: 'later',
    about: 'Something that this process needs cannot be reached, or the process is stopping.',
  },
})

/**
 * The endpoints for whoever operates a process. `/healthz` says that it lives and touches nothing, `/readyz` asks every part that
 * added a readiness check, `/metrics` shows its figures in the Prometheus text format: on the listener
 * `operations` alone, where the role has that.
 */
export default definePlugin({
  name: 'health',
  config: Settings({
    withoutHealthz: listenerNames(
      ['sidecar'],
      'Listeners that answer /healthz themselves: the sidecar has a body of its own there.',
    ),
    withoutMetrics: listenerNames(
      ['workers'],
      'Listeners without /metrics, so that code in a sandbox learns nothing about the process that it calls.',
    ),
  }),
  risks: (_config, role) =>
    Object.keys(role.listeners)
      .filter((name) => answersAnyName(role, name))
      .map(
        (name) =>
          `the listener ${name} answers under any host name, so a web page can be led to it (DNS rebinding) and read /readyz; set AGENT_ORC_HOSTS, or AGENT_ORC_INTERNAL_HOSTS for the listener internal`,
      ),
  errors: healthErrors,
  requires: { checks: ReadinessChecks },
  async setup({ config, deps, listeners, log, metrics, risks, routes, stopping, onStop }) {
    collectProcessMetrics(metrics)
    const stopRecording = recordEventLoop(metrics)
    onStop(async () => {
      stopRecording()
      metrics.clear()
    })
    const readiness = createReadiness(deps.checks, stopping, log)
    const own = listeners.filter((listener) => listener === operationsListener)
    const shown = own.length > 0 ? own : listeners.filter((listener) => !config.withoutMetrics.includes(listener))
    for (const listener of listeners) {
      if (!config.withoutHealthz.includes(listener)) routes(listener, livenessRoutes)
      routes(listener, readinessRoutes(readiness, risks))
      if (shown.includes(listener)) routes(listener, metricsRoutes(metrics))
    }
    return {}
  },
})

/** What `nodejs_eventloop_lag_` is followed by in the names of figures that are left out. */
const leftOut = ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99']
const aDay = 86_400_000

/**
 * The usual figures of a Node process, without those of a watch that wakes up a hundred times a second: it took half of what a process
 * at rest takes, sees only half with two scrapers, and `recordEventLoop` tells more.
 */
function collectProcessMetrics(metrics: Registry): void {
  // The watch cannot be left out, so it looks once a day.
  collectDefaultMetrics({ register: metrics, eventLoopMonitoringPrecision: aDay })
  for (const figure of leftOut) metrics.removeSingleMetric(`nodejs_eventloop_lag_${figure}_seconds`)
}

const Checks = Type.Record(Type.String(), Type.String(), { description: '`ok`, or what is wrong.' })
const Risks = Type.Optional(
  Type.Array(Type.String(), { description: 'What the operator should know about the settings of this process.' }),
)
const Ready = Type.Object({ ready: Type.Literal(true), checks: Checks, risks: Risks })
const NotReady = Type.Object(
  {
    error: Type.Literal('not_ready'),
    request_id: Type.String(),
    ready: Type.Literal(false),
    checks: Checks,
    risks: Risks,
  },
  { description: 'Not now; `checks` says why.' },
)

async function livenessRoutes(app: App): Promise<void> {
  const schema = {
    tags: ['health'],
    summary: 'Say that the process lives',
    description: 'Touches nothing else: for liveness probes.',
    response: { 200: plainText('`ok`') },
  }
  app.get('/healthz', { ...access('public'), schema }, async (_request, reply) =>
    reply.type('text/plain; charset=utf-8').send('ok'),
  )
}

const readinessRoutes =
  (readiness: () => Promise<Readiness>, risks: readonly string[]) =>
  async (app: App): Promise<void> => {
    const schema = {
      tags: ['health'],
      summary: 'Say whether the process can serve',
      description:
        'Checks every part that it needs, at most once a second. 503 `not_ready` while one of them cannot be reached, and as soon as the process is stopping.',
      response: { 200: Ready, 503: NotReady },
    }
    app.get('/readyz', { ...access('public'), schema }, async (request, reply) => {
      const { ready, checks } = await readiness()
      const known = risks.length > 0 ? { risks: [...risks] } : {}
      if (ready) return reply.send({ ready: true, checks, ...known })
      // The answer is sent and not thrown: a probe that fails every few seconds must not be logged as an error each time.
      return reply
        .code(503)
        .send(errorBody(healthErrors.notReady({ detail: { ready, checks, ...known } }), request.id) as never)
    })
  }

const metricsRoutes =
  (metrics: Registry) =>
  async (app: App): Promise<void> => {
    const schema = {
      tags: ['health'],
      summary: 'Read the metrics of this process',
      description: 'In the Prometheus text format, version 0.0.4.',
      response: { 200: plainText('One line for each value.') },
    }
    app.get('/metrics', { ...access('public'), schema }, async (_request, reply) =>
      reply.type(metrics.contentType).send(await metrics.metrics()),
    )
  }

/** A part that does not answer in time cannot serve a request either. */
const timeoutMs = 3_000
/** An answer is good for this long: `/readyz` is open to everybody, and must not become a load on what it asks. */
const keptMs = 1_000

interface Readiness {
  readonly ready: boolean
  /** `ok`, or what is wrong, by the name of the check. A part that is only degraded is named here and leaves the process ready. */
  readonly checks: Readonly<Record<string, string>>
}

/** Runs all checks at once. Probes that come meanwhile or within a second share the answer, so that checks of a hanging database do not pile up. */
function createReadiness(
  checks: ReadonlyMap<string, ReadinessCheck>,
  stopping: AbortSignal,
  log: FastifyBaseLogger,
): () => Promise<Readiness> {
  let running: Promise<Readiness> | undefined
  let wasReady = true
  const run = async (): Promise<Readiness> => {
    const results = await Promise.all(
      [...checks].map(async ([name, check]) => ({ name, ...(await outcome(check, log)) })),
    )
    const ready = results.every(({ serves }) => serves)
    const said = Object.fromEntries(results.map(({ name, says }) => [name, says]))
    if (ready !== wasReady) log.warn({ checks: said }, ready ? 'ready again' : 'not ready')
    wasReady = ready
    return { ready, checks: said }
  }
  return async () => {
    if (stopping.aborted) return { ready: false, checks: { process: 'stopping' } }
    running ??= run().finally(() => {
      setTimeout(() => (running = undefined), keptMs).unref()
    })
    const answer = await running
    return stopping.aborted ? { ready: false, checks: { process: 'stopping' } } : answer
  }
}

interface Outcome {
  readonly serves: boolean
  readonly says: string
}

async function outcome(check: ReadinessCheck, log: FastifyBaseLogger): Promise<Outcome> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<Outcome>((resolve) => {
    timer = setTimeout(resolve, timeoutMs, { serves: false, says: `no answer in ${timeoutMs / 1_000} s` })
  })
  try {
    return await Promise.race([check().then((says) => ({ serves: true, says: says ?? 'ok' })), late])
  } catch (err) {
    log.debug({ err }, 'readiness check failed')
    // The text of an unknown exception may hold addresses; `/readyz` is open to everybody.
    return { serves: false, says: isAppError(err) ? (err.sentence ?? err.code) : 'failed' }
  } finally {
    clearTimeout(timer)
  }
}
