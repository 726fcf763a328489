import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { pageHeaders, PageQuery } from '#contracts/paging'
import { isProfileName, Profile } from '#contracts/profiles'
import { unknownProfile } from './errors.ts'
import { CreateProfile, NameParams, NoContent, ReplaceProfile } from './schema.ts'
import type { ProfileService } from './service.ts'
import { findProfile, listProfiles } from './store.ts'

const tags = ['profiles']

export function profileRoutes(app: App, guard: Guard, database: Database, service: ProfileService): void {
  app.get(
    '/api/profiles',
    { ...access('member'), schema: { tags, querystring: PageQuery, response: { 200: Type.Array(Profile) } } },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { profiles, total } = await listProfiles(database, tenantId, request.query)
      void reply.headers(pageHeaders(request.url, request.query, total))
      return profiles
    },
  )
  app.post(
    '/api/profiles',
    { ...access('admin'), schema: { tags, body: CreateProfile, response: { 201: Profile } } },
    async (request, reply) => {
      const profile = await service.create(guard.callerOf(request).tenantId, request.body)
      return reply.code(201).send(profile)
    },
  )
  app.get(
    '/api/profiles/:name',
    { ...access('member'), schema: { tags, params: NameParams, response: { 200: Profile } } },
    async (request) => {
      const name = known(request.params.name)
      const profile = await findProfile(database, guard.callerOf(request).tenantId, name)
      if (!profile) throw unknownProfile()
      return profile
    },
  )
  app.put(
    '/api/profiles/:name',
    { ...access('admin'), schema: { tags, params: NameParams, body: ReplaceProfile, response: { 200: Profile } } },
    async (request) => service.replace(guard.callerOf(request).tenantId, known(request.params.name), request.body),
  )
  app.delete(
    '/api/profiles/:name',
    { ...access('admin'), schema: { tags, params: NameParams, response: { 204: NoContent } } },
    async (request, reply) => {
      await service.remove(guard.callerOf(request).tenantId, known(request.params.name))
      return reply.code(204).send()
    },
  )
}

/** A name that no profile can have is an unknown one, and never reaches the database. */
function known(name: string): string {
  if (!isProfileName(name)) throw unknownProfile()
  return name
}
