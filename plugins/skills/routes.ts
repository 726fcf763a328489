import multipart from '@fastify/multipart'
import { type Static, Type } from '@sinclair/typebox'
import type { Counter } from 'prom-client'
import { access, type App, conflict, failures, httpErrors, NoContent, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { skillErrors } from '#contracts/skills'
import { sendList } from '#kit/lists'
import type { Catalog } from './catalog.ts'
import { importErrors } from './errors.ts'
import { readFolder } from './package.ts'
import { Uploads } from './upload.ts'

const Time = Type.String({ format: 'date-time' })
const Metadata = Type.Record(Type.String(), Type.String())
/** Longer than any valid field: the skill's own checks report all problems at once, so the schema must not stop at the first. */
const text = (description: string) => Type.String({ maxLength: 200_000, description })
/** More keys than are valid, for the same reason, but not tens of thousands: the skill's own checks read what was written out of them. */
const NewMetadata = Type.Record(Type.String(), Type.String({ maxLength: 40_000 }), {
  maxProperties: 200,
  propertyNames: { maxLength: 1_000 },
  // The pattern of any key does not match one with a line break, whose value would not be checked.
  additionalProperties: false,
  description: 'Up to 100 keys; with the other fields up to 32 KiB.',
})

const Resource = Type.Object({
  path: Type.String({ description: 'Inside the folder of the skill.' }),
  contentType: Type.String(),
  sha256: Type.String(),
  executable: Type.Boolean(),
  bytes: Type.Integer(),
})

const NewSkill = Type.Object(
  {
    name: text('Up to 64 lower-case letters and digits, with single hyphens between them.'),
    description: text('What it does and when to use it. At first a model sees only this; up to 1,024 characters.'),
    body: text('Markdown, which a model reads when it needs the skill; up to 128 KiB.'),
    license: Type.Optional(text('The name of a license, or of a file with it.')),
    compatibility: Type.Optional(text('What it needs from its environment; up to 500 characters.')),
    allowedTools: Type.Optional(
      Type.Array(Type.String({ maxLength: 1_000 }), {
        maxItems: 200,
        description: 'Tools that it uses: a profile must have them to attach the skill.',
      }),
    ),
    metadata: Type.Optional(NewMetadata),
  },
  { additionalProperties: false },
)
type NewSkill = Static<typeof NewSkill>

const Skill = Type.Object({
  name: Type.String(),
  description: Type.String(),
  source: Type.Union([Type.Literal('user'), Type.Literal('imported'), Type.Literal('platform')]),
  version: Type.Integer({ minimum: 1 }),
  digest: Type.String({ description: 'SHA-256 of the version; a session keeps the one that it began with.' }),
  license: Type.Optional(Type.String()),
  compatibility: Type.Optional(Type.String()),
  allowedTools: Type.Array(Type.String()),
  metadata: Metadata,
  resources: Type.Array(Resource, { description: 'The files beside `SKILL.md`.' }),
  requiresSandbox: Type.Boolean({ description: 'It has scripts: a profile needs a sandbox to use it.' }),
  totalBytes: Type.Integer(),
  createdAt: Time,
  updatedAt: Time,
})
const WholeSkill = Type.Composite([Skill, Type.Object({ body: Type.String() })])

const DryRun = Type.Object({
  valid: Type.Boolean(),
  name: Type.String(),
  problems: Type.Array(Type.String(), { description: 'Everything that keeps the folder from being a skill.' }),
  forgiven: Type.Array(Type.String(), { description: 'Deviations from the format, and how they were corrected.' }),
  resources: Type.Array(Resource),
  requiresSandbox: Type.Boolean(),
  totalBytes: Type.Integer(),
  stagingId: Type.Optional(Type.String({ description: 'To be committed within 15 minutes; absent when not valid.' })),
})

const Upload = Type.Object({
  files: Type.Array(Type.String({ format: 'binary' }), {
    description: 'The files of one folder; the filename of each part is its path, `<folder>/SKILL.md`.',
  }),
  executable: Type.Optional(
    Type.Array(Type.String(), {
      description: 'Paths of files that are executable; a first line `#!` says so as well.',
    }),
  ),
})

const NameParams = Type.Object({ name: Type.String({ maxLength: 200 }) })
const StagingParams = Type.Object({ stagingId: Type.String({ maxLength: 200 }) })
const FileQuery = Type.Object({
  path: Type.String({ minLength: 1, maxLength: 512, description: 'Inside the folder of the skill: `SKILL.md`.' }),
})

const tags = ['skills']

/** Routes that read skills, for every member of a tenant. */
export function skillRoutes(app: App, guard: Guard, catalog: Catalog): void {
  app.get(
    '/api/skills',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List skills',
        description: 'Sorted by name, including those of the platform, without their bodies.',
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
        description: 'Includes its body.',
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
      // The file is sent as a download, never as a page: an uploaded file could be hostile HTML.
      return reply
        .headers({ 'content-type': 'application/octet-stream', 'content-disposition': 'attachment' })
        .send(Buffer.from(data))
    },
  )
}

/** Routes that write single skills, for admins. */
export function skillWriteRoutes(app: App, guard: Guard, catalog: Catalog): void {
  app.post(
    '/api/skills',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a skill',
        description: 'A skill without files; import one with files. 409 `conflict` if one with this name exists.',
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
          'Sessions that began with it keep it; new sessions of profiles that name it run without it and say so. A platform skill does not come back.',
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

/** Imports of whole folders in two steps: a check that shows the result, then the commit. Specification 4.12. */
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
          'Stores no skill. Lists all problems of the folder, and small errors that were corrected; a valid folder is kept for 15 minutes, to be committed.',
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
      // The handler reads the body while it arrives, so there is nothing to validate before.
      validatorCompiler: () => () => true,
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const files = await uploads.read(tenantId, request, catalog.mostOf(tenantId).mostBytes)
      const { stagingId, ...reading } = await catalog.stage(tenantId, await readFolder(files))
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
