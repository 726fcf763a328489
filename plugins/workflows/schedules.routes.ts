import { Type } from '@sinclair/typebox'
import { access, type App, failures, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { sendList } from '#kit/lists'
import { workflowErrors } from './errors.ts'
import { Firing, RunAccepted, Schedule, ScheduleBody, ScheduleParams } from './schema.ts'
import type { Schedules } from './schedules.ts'

const tags = ['workflows']
const { invalidSchedule, invalidInput } = workflowErrors
const { limitReached, limitExceeded } = limitErrors

const one = (summary: string, description?: string) => ({
  schema: {
    tags,
    summary,
    ...(description === undefined ? {} : { description }),
    params: ScheduleParams,
    response: { 200: Schedule, ...failures(notFound) },
  },
})

export function scheduleRoutes(app: App, guard: Guard, schedules: Schedules): void {
  app.get(
    '/api/workflows/schedules',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List schedules',
        description: 'Newest first.',
        querystring: PageQuery,
        response: { 200: Type.Array(Schedule) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const found = await schedules.list(guard.callerOf(request).tenantId, page)
      return sendList(request, reply, found, { page, item: Schedule })
    },
  )
  app.post(
    '/api/workflows/schedules',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a schedule',
        description:
          'For a workflow, or for a single profile with a prompt. Each of its times fires once, however many servers there are.',
        body: ScheduleBody,
        response: { 201: Schedule, ...failures(invalidSchedule, invalidInput, limitExceeded) },
      },
    },
    async (request, reply) => reply.code(201).send(await schedules.create(guard.callerOf(request), request.body)),
  )
  app.get(
    '/api/workflows/schedules/:id',
    { ...access('member'), ...one('Get a schedule', 'With its next times.') },
    async (request) => schedules.find(guard.callerOf(request).tenantId, request.params.id),
  )
  app.delete(
    '/api/workflows/schedules/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a schedule',
        description: 'Deletes its history as well. Runs that it has started continue.',
        params: ScheduleParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      await schedules.remove(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}

export function scheduleTimeRoutes(app: App, guard: Guard, schedules: Schedules): void {
  app.post(
    '/api/workflows/schedules/:id/pause',
    { ...access('admin'), ...one('Pause a schedule', 'Idempotent.') },
    async (request) => schedules.pause(guard.callerOf(request).tenantId, request.params.id),
  )
  app.post(
    '/api/workflows/schedules/:id/resume',
    { ...access('admin'), ...one('Resume a schedule', 'With its next time from now. Idempotent.') },
    async (request) => schedules.resume(guard.callerOf(request).tenantId, request.params.id),
  )
  app.post(
    '/api/workflows/schedules/:id/run',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Run a schedule now',
        description: 'Independent of its times, also when it is paused or a run is running.',
        params: ScheduleParams,
        response: { 202: RunAccepted, ...failures(notFound, invalidSchedule, limitReached) },
      },
    },
    async (request, reply) => {
      const { id, status } = await schedules.runNow(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(202).send({ id, runId: id, status })
    },
  )
  app.get(
    '/api/workflows/schedules/:id/history',
    {
      ...access('member'),
      schema: {
        tags,
        summary: "List the outcomes of a schedule's times",
        description: 'Newest first; the last thousand are kept.',
        params: ScheduleParams,
        querystring: PageQuery,
        response: { 200: Type.Array(Firing), ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const found = await schedules.firings(guard.callerOf(request).tenantId, request.params.id, page)
      return sendList(request, reply, found, { page, item: Firing })
    },
  )
}
