import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { sendList } from '#kit/lists'
import { isProfileName } from '#contracts/profiles'
import type { Database } from '#contracts/database'
import { PageQuery } from '#contracts/paging'
import { profileErrors, unfit, unknownProfile } from './errors.ts'
import {
  CreateProfile,
  etagOf,
  ListQuery,
  matchedVersions,
  NameParams,
  ProfileVersion,
  ProfileView,
  ReplaceProfile,
  VersionEntry,
  VersionParams,
  WriteHeaders,
} from './schema.ts'
import type { ProfileService } from './service.ts'
import type { ProfileStore } from './store.ts'
import type { ViewOf } from './view.ts'
import { findVersion, listVersions } from './versions.store.ts'

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

export function versionRoutes(
  app: App,
  guard: Guard,
  database: Database,
  service: ProfileService,
  viewOf: ViewOf,
): void {
  app.get(
    '/api/profiles/:name/versions',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the versions of a profile',
        description: 'Newest first, without the profiles themselves.',
        params: NameParams,
        querystring: PageQuery,
        response: { 200: Type.Array(VersionEntry), ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { query: page } = request
      const versions = await listVersions(database, tenantId, knownName(request.params.name), page)
      return sendList(request, reply, versions, { page, item: VersionEntry })
    },
  )
  app.get(
    '/api/profiles/:name/versions/:version',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Get one version of a profile',
        description: 'The profile as it was then, and who wrote it.',
        params: VersionParams,
        response: { 200: ProfileVersion, ...failures(notFound) },
      },
    },
    async (request) => {
      const { name, version } = request.params
      return (await findVersion(database, guard.callerOf(request).tenantId, knownName(name), version)).version
    },
  )
  app.post(
    '/api/profiles/:name/versions/:version/restore',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Restore a version of a profile',
        description: 'Stores the old state as a new version, and broadcasts it. The history stays as it is.',
        params: VersionParams,
        headers: WriteHeaders,
        response: { 200: ProfileView, ...failures(...unfit, notFound, profileErrors.preconditionFailed) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const { name, version } = request.params
      const versions = matchedVersions(request.headers['if-match'])
      const profile = await service.restore(caller.tenantId, knownName(name), version, versions, caller)
      void reply.header('etag', etagOf(profile.version))
      return viewOf(profile)
    },
  )
}
