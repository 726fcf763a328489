import { Type } from '@sinclair/typebox'
import { access, type App, conflict, failures, isAppError, NoContent, notFound } from '#kernel'
import { type Guard, vfsService } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { isSecretName, secretErrors, secretOf, type Secrets } from '#contracts/secrets'
import { sendList } from '#kit/lists'
import { unknownSecret } from './errors.ts'
import {
  CreateSecret,
  NameParams,
  ResolveBody,
  Resolved,
  SecretMetadata,
  SecretRead,
  SecretVersion,
  UpdateSecret,
  VersionParams,
} from './schema.ts'
import type { SecretService } from './service.ts'
import { listReads, listSecrets, listVersions } from './store.ts'

const tags = ['secrets']

/** Routes that read what admins may see, never a value. Specification 4.17. */
export function secretReadRoutes(app: App, guard: Guard, database: Database): void {
  app.get(
    '/api/secrets',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List secrets',
        description: 'Sorted by name, without their values. `warning` says which ones expire.',
        querystring: PageQuery,
        response: { 200: Type.Array(SecretMetadata), ...failures(secretErrors.secretsUnavailable) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const secrets = await listSecrets(database, guard.callerOf(request).tenantId, page)
      return sendList(request, reply, secrets, { page, item: SecretMetadata })
    },
  )
  app.get(
    '/api/secrets/:name/versions',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List the versions of a secret',
        description: 'Newest first, without their values.',
        params: NameParams,
        querystring: PageQuery,
        response: { 200: Type.Array(SecretVersion), ...failures(notFound, secretErrors.secretsUnavailable) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const name = knownName(request.params.name)
      const versions = await listVersions(database, guard.callerOf(request).tenantId, name, page)
      return sendList(request, reply, versions, { page, item: SecretVersion })
    },
  )
  app.get(
    '/api/secrets/:name/reads',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List who has read a secret',
        description:
          'By reader: how often, when last, and which version, to show where a new value has arrived. Some seconds late.',
        params: NameParams,
        querystring: PageQuery,
        response: { 200: Type.Array(SecretRead), ...failures(notFound, secretErrors.secretsUnavailable) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const reads = await listReads(database, guard.callerOf(request).tenantId, knownName(request.params.name), page)
      return sendList(request, reply, reads, { page, item: SecretRead })
    },
  )
}

export function secretWriteRoutes(app: App, guard: Guard, service: SecretService): void {
  const { secretsUnavailable, secretUnreadable } = secretErrors
  const { limitExceeded } = limitErrors
  app.post(
    '/api/secrets',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a secret',
        description: 'Encrypted before it is stored. Refer to it as `secret://<name>`.',
        body: CreateSecret,
        response: { 201: SecretMetadata, ...failures(conflict, limitExceeded, secretsUnavailable) },
      },
    },
    async (request, reply) => {
      const made = await service.create(guard.callerOf(request), request.body)
      return reply.code(201).send(made)
    },
  )
  app.put(
    '/api/secrets/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace a secret',
        description:
          'Stores a new version, which is used from now on. If the body leaves out `key` or `expiresAt`, the secret no longer has it.',
        params: NameParams,
        body: UpdateSecret,
        response: { 200: SecretMetadata, ...failures(notFound, limitExceeded, secretsUnavailable) },
      },
    },
    async (request) => service.update(guard.callerOf(request), knownName(request.params.name), request.body),
  )
  app.post(
    '/api/secrets/:name/versions/:version/restore',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Restore a version of a secret',
        description: 'Stores the old value as a new version. The history stays as it is.',
        params: VersionParams,
        response: { 200: SecretMetadata, ...failures(notFound, secretUnreadable, secretsUnavailable) },
      },
    },
    async (request) => {
      const { name, version } = request.params
      return service.restore(guard.callerOf(request), knownName(name), version)
    },
  )
  app.delete(
    '/api/secrets/:name',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a secret',
        description:
          'Deletes all its versions. Everything that refers to it fails from now on, with a message that says so.',
        params: NameParams,
        response: { 204: NoContent, ...failures(notFound, secretsUnavailable) },
      },
    },
    async (request, reply) => {
      await service.remove(guard.callerOf(request), knownName(request.params.name))
      return reply.code(204).send()
    },
  )
}

/** A name in a form that no secret can have is answered as unknown, without a query. */
function knownName(name: string): string {
  if (!isSecretName(name)) throw unknownSecret()
  return name
}

/** The reader's name that admins see for requests over the internal listener. */
const reader = 'internal'

/** Returns plain text to a caller whose signature is of the family `vfs`, for the signed tenant. Specification 4.17 and 5.3. */
export function resolveRoute(app: App, guard: Guard, secrets: Pick<Secrets, 'resolve'>): void {
  const { invalidRef, secretExpired, secretUnreadable, secretsUnavailable } = secretErrors
  app.post(
    '/internal/secrets/resolve',
    {
      ...access(vfsService),
      schema: {
        tags: ['secrets'],
        summary: 'Resolve a secret',
        description:
          'Signed with the key family `vfs`; the tenant is the signed one. A reference is exactly `secret://<name>`.',
        body: ResolveBody,
        response: {
          200: Resolved,
          ...failures(invalidRef, notFound, secretExpired, secretUnreadable, secretsUnavailable),
        },
      },
    },
    async (request, reply) => {
      const name = secretOf(request.body.ref)
      if (name === undefined) throw invalidRef()
      void reply.header('cache-control', 'no-store')
      const { value } = await secrets
        .resolve(guard.callerOf(request).tenantId, name, reader)
        .catch((error: unknown) => {
          throw isUnknown(error) ? unknownSecret() : error
        })
      return { value }
    },
  )
}

/** The error's code ends with the name of the secret, so only its beginning is compared. */
const isUnknown = (error: unknown): boolean =>
  isAppError(error) && error.code.startsWith(secretErrors.unknownSecret.row.code)
