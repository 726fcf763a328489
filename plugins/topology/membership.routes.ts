import type { FastifyBaseLogger } from 'fastify'
import { access, type App } from '#kernel'
import type { RunnerMembership } from '#contracts/runner'
import { unknownRunner } from './errors.ts'
import { Address, HashBody, Reconciled, ReconcileBody, Removed } from './schema.ts'

const tags = ['topology']

/** Changes of the fleet, on the signed plane. They are of this process: call each conductor. Specification 4.14. */
export function membershipRoutes(app: App, membership: RunnerMembership, log: FastifyBaseLogger): void {
  app.post(
    '/internal/topology/reconcile',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Add runners and probe them',
        description:
          'With no body, those of RUNNER_URLS. None is removed. One that answers again may be given sessions at once. Answers ' +
          'when each was probed; 400 for a URL that is none, or that carries credentials, a query or a fragment.',
        body: ReconcileBody,
        response: { 200: Reconciled },
      },
      preValidation: async (request) => void (request.body ??= {}),
    },
    async (request) => {
      const runners = await membership.reconcile(request.body.urls)
      log.info({ runners }, 'runners were reconciled')
      return { runners: [...runners] }
    },
  )
  app.post(
    '/internal/topology/drain',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Give a runner no new sessions',
        description: 'Its sessions go on. 404 `not_found` for an unknown hash.',
        body: HashBody,
        response: { 200: Address },
      },
    },
    async (request) => {
      const runner = membership.drain(request.body.hash)
      if (!runner) throw unknownRunner()
      log.info(runner, 'a runner is drained')
      return runner
    },
  )
  app.post(
    '/internal/topology/undrain',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Give a drained runner sessions again',
        description: '404 `not_found` for an unknown hash.',
        body: HashBody,
        response: { 200: Address },
      },
    },
    async (request) => {
      const runner = membership.undrain(request.body.hash)
      if (!runner) throw unknownRunner()
      log.info(runner, 'a runner is drained no longer')
      return runner
    },
  )
  app.post(
    '/internal/topology/remove',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Forget a runner',
        description:
          'Drain it first and wait until it has no sessions. 404 `not_found` for an unknown hash. A later reconcile with its URL adds it again.',
        body: HashBody,
        response: { 200: Removed },
      },
    },
    async (request) => {
      const removed = await membership.remove(request.body.hash)
      if (!removed) throw unknownRunner()
      log.info(removed, 'a runner was removed')
      return removed
    },
  )
}
