import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { PageQuery } from '#contracts/paging'
import { sendList } from '#kit/lists'
import { knownName } from './routes.ts'
import {
  etagOf,
  matchedVersions,
  NameParams,
  ProfileVersion,
  ProfileView,
  VersionEntry,
  VersionParams,
  WriteHeaders,
} from './schema.ts'
import type { ProfileService } from './service.ts'
import type { ViewOf } from './view.ts'
import { findVersion, listVersions } from './versions.store.ts'
import { profileErrors, unfit } from './errors.ts'

const tags = ['profiles']

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
