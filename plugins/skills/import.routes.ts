import multipart from '@fastify/multipart'
import type { Counter } from 'prom-client'
import { access, type App, failures, httpErrors, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import type { Catalog } from './catalog.ts'
import { importErrors } from './errors.ts'
import { readFolder } from './package.ts'
import { DryRun, StagingParams, Upload, WholeSkill } from './schema.ts'
import { Uploads } from './upload.ts'

const tags = ['skills']

/** Imports of whole folders, in two steps: first what would come of it, then the commit. Specification 4.12. */
export async function importRoutes(
  app: App,
  guard: Guard,
  catalog: Catalog,
  imports: Counter<'outcome'>,
): Promise<void> {
  const uploads = new Uploads()
  await app.register(multipart)
  app.post(
    '/api/skills/import',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Try the import of a skill folder',
        description:
          'Writes no skill. Says everything that is wrong with the folder, and how what is almost right was read; a valid one is kept for 15 minutes, to be committed.',
        consumes: ['multipart/form-data'],
        body: Upload,
        response: {
          200: DryRun,
          ...failures(
            importErrors.brokenUpload,
            importErrors.notMultipart,
            importErrors.tooManyImports,
            httpErrors.bodyTooLarge,
            limitErrors.limitExceeded,
          ),
        },
      },
      // The handler reads the body while it arrives.
      validatorCompiler: () => () => true,
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const files = await uploads.read(tenantId, request, catalog.mostOf(tenantId).mostBytes)
      const { stagingId, ...reading } = await catalog.stage(tenantId, readFolder(files))
      const valid = stagingId !== undefined
      imports.inc({ outcome: valid ? 'staged' : 'invalid' })
      return { valid, ...reading, ...(valid ? { stagingId } : {}) }
    },
  )
  app.post(
    '/api/skills/import/:stagingId/commit',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Commit an import',
        description:
          'Once, at any conductor. A skill of the same name is replaced; sessions that began with the former version keep it.',
        params: StagingParams,
        response: { 201: WholeSkill, ...failures(notFound, limitErrors.limitExceeded) },
      },
    },
    async (request, reply) => {
      const made = await catalog.commit(guard.callerOf(request).tenantId, request.params.stagingId)
      imports.inc({ outcome: 'committed' })
      return reply.code(201).send(made)
    },
  )
}
