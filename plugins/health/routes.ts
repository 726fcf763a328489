import { Type } from '@sinclair/typebox'
import type { Registry } from 'prom-client'
import { access, type App, errorBody, errorTable, plainText } from '#kernel'
import type { Readiness } from './readiness.ts'

export const healthErrors = errorTable('health', {
  notReady: { status: 503, retry: 'later', about: 'Something that this process needs is away, or it is stopping.' },
})

const Checks = Type.Record(Type.String(), Type.String(), { description: '`ok`, or what is wrong.' })
const Risks = Type.Optional(
  Type.Array(Type.String(), { description: 'What whoever runs this process should know of its settings.' }),
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

export async function livenessRoutes(app: App): Promise<void> {
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

export const readinessRoutes =
  (readiness: () => Promise<Readiness>, risks: readonly string[]) =>
  async (app: App): Promise<void> => {
    const schema = {
      tags: ['health'],
      summary: 'Say whether the process can serve',
      description:
        'Asks every part that it needs, at most once a second. 503 `not_ready` while one of them is away, and as soon as the process is stopping.',
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

export const metricsRoutes =
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
