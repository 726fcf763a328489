import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { secretErrors } from '#contracts/secrets'
import { webhookErrors } from '#contracts/webhooks'
import { sendList } from '#kit/lists'
import { Delivery, DeliveryParams, DeliveryQuery, OwnSecret, Secret } from './schema.ts'
import type { WebhookService } from './service.ts'

const tags = ['webhooks']

export function deliveryRoutes(app: App, guard: Guard, service: WebhookService): void {
  app.get(
    '/api/webhooks/deliveries',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List webhook messages',
        description: 'Newest first: delivered, pending and given up.',
        querystring: DeliveryQuery,
        response: { 200: Type.Array(Delivery) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const deliveries = await service.list(guard.callerOf(request).tenantId, page)
      return sendList(request, reply, deliveries, { page, item: Delivery })
    },
  )
  app.get(
    '/api/webhooks/deliveries/:id',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a webhook message',
        description: 'How its delivery stands: attempts, the last status, when it is tried next.',
        params: DeliveryParams,
        response: { 200: Delivery, ...failures(notFound) },
      },
    },
    async (request) => service.get(guard.callerOf(request).tenantId, request.params.id),
  )
  app.post(
    '/api/webhooks/deliveries/:id/redeliver',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Send a webhook message again',
        description: 'Under the same id, with the full number of attempts. A pending message is unchanged.',
        params: DeliveryParams,
        response: { 202: Delivery, ...failures(notFound, webhookErrors.webhooksUnavailable) },
      },
    },
    async (request, reply) => {
      const delivery = await service.redeliver(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(202).send(delivery)
    },
  )
}

export function secretRoutes(app: App, guard: Guard, service: WebhookService): void {
  app.get(
    '/api/webhooks/secret',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Read the signing secret',
        description: 'The secret with which receivers of this tenant verify messages; see standardwebhooks.com.',
        response: { 200: Secret, ...failures(webhookErrors.webhooksUnavailable) },
      },
    },
    async (request, reply) => {
      void reply.header('cache-control', 'no-store')
      return service.secret(guard.callerOf(request).tenantId)
    },
  )
  app.put(
    '/api/webhooks/secret',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Sign with a secret of your own',
        description:
          'The secret is read at each delivery. For 24 hours messages also have the signature of the previous secret; the same applies when its value changes later.',
        body: OwnSecret,
        response: {
          200: Secret,
          ...failures(
            secretErrors.invalidRef,
            secretErrors.unknownSecret,
            secretErrors.secretExpired,
            secretErrors.secretUnfit,
            webhookErrors.webhooksUnavailable,
            secretErrors.secretsUnavailable,
          ),
        },
      },
    },
    async (request, reply) => {
      void reply.header('cache-control', 'no-store')
      return service.refer(guard.callerOf(request).tenantId, request.body.secret)
    },
  )
  app.post(
    '/api/webhooks/secret/rotate',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace the signing secret',
        description: 'With a new one from this server. For 24 hours messages have the signatures of both secrets.',
        response: { 200: Secret, ...failures(webhookErrors.webhooksUnavailable) },
      },
    },
    async (request, reply) => {
      void reply.header('cache-control', 'no-store')
      return service.rotate(guard.callerOf(request).tenantId)
    },
  )
}
