import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { skillErrors } from '#contracts/skills'
import { sendList } from '#kit/lists'
import type { Catalog } from './catalog.ts'
import { FileQuery, NameParams, NewSkill, Skill, WholeSkill } from './schema.ts'

const tags = ['skills']

/** Reads of skills, for every member. */
export function skillRoutes(app: App, guard: Guard, catalog: Catalog): void {
  app.get(
    '/api/skills',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List skills',
        description: 'By name, those of the platform among them, without their bodies.',
        querystring: PageQuery,
        response: { 200: Type.Array(Skill) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const skills = await catalog.list(guard.callerOf(request).tenantId, page)
      return sendList(request, reply, skills, { page, item: Skill })
    },
  )
  app.get(
    '/api/skills/:name',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a skill',
        description: 'With its body.',
        params: NameParams,
        response: { 200: WholeSkill, ...failures(notFound) },
      },
    },
    async (request) => catalog.find(guard.callerOf(request).tenantId, request.params.name),
  )
  app.get(
    '/api/skills/:name/file',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a file of a skill',
        description: 'The bytes of `SKILL.md` or of a resource, in the version that the skill has now.',
        params: NameParams,
        querystring: FileQuery,
        produces: ['application/octet-stream'],
        response: {
          200: Type.Unsafe<Buffer>(Type.String({ format: 'binary', description: 'The file, whatever its type is.' })),
          ...failures(notFound),
        },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { data } = await catalog.file(tenantId, request.params.name, request.query.path)
      // Never shown by a browser: whoever uploaded it may have written a page.
      return reply
        .headers({ 'content-type': 'application/octet-stream', 'content-disposition': 'attachment' })
        .send(Buffer.from(data))
    },
  )
}

/** Writes of skills one by one, for admins. */
export function skillWriteRoutes(app: App, guard: Guard, catalog: Catalog): void {
  app.post(
    '/api/skills',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a skill',
        description: 'Of a body alone; one with files is imported. 409 `conflict` when there is one of this name.',
        body: NewSkill,
        response: {
          201: WholeSkill,
          ...failures(skillErrors.invalidSkill, conflict, limitErrors.limitExceeded),
        },
      },
    },
    async (request, reply) => {
      const made = await catalog.create(guard.callerOf(request).tenantId, request.body)
      return reply.code(201).send(made)
    },
  )
  app.delete(
    '/api/skills/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a skill',
        description:
          'Sessions that began with it keep it; new ones of profiles that name it go without it and say so. One of the platform does not come back.',
        params: NameParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      await catalog.remove(guard.callerOf(request).tenantId, request.params.name)
      return reply.code(204).send()
    },
  )
}
