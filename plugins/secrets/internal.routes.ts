import { access, type App, failures, isAppError, notFound } from '#kernel'
import { type Guard, vfsService } from '#contracts/auth'
import { secretErrors, secretOf, type Secrets } from '#contracts/secrets'
import { unknownSecret } from './errors.ts'
import { ResolveBody, Resolved } from './schema.ts'

/** What resolves here, as the admins of a tenant see it. */
const reader = 'internal'

/** Gives plain text to whoever signs with the family `vfs`, for the tenant that is signed. Specification 4.17 and 5.3. */
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
          'Signed with the key family `vfs`; the tenant is the signed one. A reference is `secret://<name>` and nothing else.',
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

/** Its code goes on with the name. */
const isUnknown = (error: unknown): boolean =>
  isAppError(error) && error.code.startsWith(secretErrors.unknownSecret.row.code)
