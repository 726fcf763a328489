import { type Static, Type } from '@sinclair/typebox'

const Time = Type.String({ format: 'date-time' })
const Metadata = Type.Record(Type.String(), Type.String())
/** Longer than any valid field: the skill's own checks report all problems at once, so the schema must not stop at the first. */
const text = (description: string) => Type.String({ maxLength: 200_000, description })

const Resource = Type.Object({
  path: Type.String({ description: 'Inside the folder of the skill.' }),
  contentType: Type.String(),
  sha256: Type.String(),
  executable: Type.Boolean(),
  bytes: Type.Integer(),
})

export const NewSkill = Type.Object(
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
    metadata: Type.Optional(Metadata),
  },
  { additionalProperties: false },
)
export type NewSkill = Static<typeof NewSkill>

export const Skill = Type.Object({
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
export const WholeSkill = Type.Composite([Skill, Type.Object({ body: Type.String() })])

export const DryRun = Type.Object({
  valid: Type.Boolean(),
  name: Type.String(),
  problems: Type.Array(Type.String(), { description: 'Everything that keeps the folder from being a skill.' }),
  forgiven: Type.Array(Type.String(), { description: 'Deviations from the format, and how they were corrected.' }),
  resources: Type.Array(Resource),
  requiresSandbox: Type.Boolean(),
  totalBytes: Type.Integer(),
  stagingId: Type.Optional(Type.String({ description: 'To be committed within 15 minutes; absent when not valid.' })),
})

export const Upload = Type.Object({
  files: Type.Array(Type.String({ format: 'binary' }), {
    description: 'The files of one folder; the filename of each part is its path, `<folder>/SKILL.md`.',
  }),
  executable: Type.Optional(
    Type.Array(Type.String(), {
      description: 'Paths of files that are executable; a first line `#!` says so as well.',
    }),
  ),
})

export const NameParams = Type.Object({ name: Type.String({ maxLength: 200 }) })
export const StagingParams = Type.Object({ stagingId: Type.String({ maxLength: 200 }) })
export const FileQuery = Type.Object({
  path: Type.String({ minLength: 1, maxLength: 512, description: 'Inside the folder of the skill: `SKILL.md`.' }),
})
