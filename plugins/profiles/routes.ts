import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, failures, conflict, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { sendList } from '#kit/lists'
import { isProfileName } from '#contracts/profiles'
import { unknownProfile, profileErrors, unfit } from './errors.ts'
import {
  CreateProfile,
  etagOf,
  ListQuery,
  matchedVersions,
  NameParams,
  ProfileView,
  ReplaceProfile,
  WriteHeaders,
} from './schema.ts'
import type { ProfileService } from './service.ts'
import type { ProfileStore } from './store.ts'
import type { ViewOf } from './view.ts'

const tags = ['profiles']

/** Profiles. Specification 4.3. */
export function profileRoutes(app: App, guard: Guard, store: ProfileStore, viewOf: ViewOf): void {
  app.get(
    '/api/profiles',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List profiles',
        description: 'Sorted by name; each in its latest version.',
        querystring: ListQuery,
        response: { 200: Type.Array(ProfileView) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { q, ...page } = request.query
      const profiles = await store.list(tenantId, q, page)
      return sendList(request, reply, profiles, { page, item: ProfileView, shown: viewOf })
    },
  )
  app.get(
    '/api/profiles/:name',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get a profile',
        description:
          'Its latest version. Write with the `ETag` of this answer as `If-Match` to detect concurrent changes.',
        params: NameParams,
        response: { 200: ProfileView, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const name = knownName(request.params.name)
      const placed = await store.findPlaced(guard.callerOf(request).tenantId, name)
      if (!placed) throw unknownProfile()
      const { profile } = placed
      void reply.header('etag', etagOf(profile.version))
      return viewOf(profile)
    },
  )
}

export function profileWriteRoutes(app: App, guard: Guard, service: ProfileService, viewOf: ViewOf): void {
  app.post(
    '/api/profiles',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a profile',
        description:
          'Stored as version 1, or the next one if the name was in use before, then broadcast to every runner.',
        body: CreateProfile,
        response: { 201: ProfileView, ...failures(...unfit, conflict) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const profile = await service.create(caller.tenantId, request.body, caller)
      return reply.code(201).header('etag', etagOf(profile.version)).send(viewOf(profile))
    },
  )
  app.put(
    '/api/profiles/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace a profile',
        description:
          'Stores a new version and broadcasts it. Existing sessions keep the version they were created with.',
        params: NameParams,
        headers: WriteHeaders,
        body: ReplaceProfile,
        response: { 200: ProfileView, ...failures(...unfit, notFound, conflict, profileErrors.preconditionFailed) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const versions = matchedVersions(request.headers['if-match'])
      const name = knownName(request.params.name)
      const profile = await service.replace(caller.tenantId, name, request.body, versions, caller)
      void reply.header('etag', etagOf(profile.version))
      return viewOf(profile)
    },
  )
  app.delete(
    '/api/profiles/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a profile',
        description:
          'Removes it from every runner; existing sessions keep their snapshot. Its versions stay, and their numbers continue if the name is used again.',
        params: NameParams,
        headers: WriteHeaders,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const versions = matchedVersions(request.headers['if-match'])
      await service.remove(guard.callerOf(request).tenantId, knownName(request.params.name), versions)
      return reply.code(204).send()
    },
  )
}

/** Throws `not_found` for a name that no profile can have, so that it never reaches the database. */
export function knownName(name: string): string {
  if (!isProfileName(name)) throw unknownProfile()
  return name
}
