import { type Static, Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'
import { Profile, ProfileInput, profileName } from '#contracts/profiles'

// A profile that was read may be sent back unchanged: fields that the server computes are accepted and ignored.
const computed = {
  version: Type.Optional(Type.Unknown({ description: 'Counted by the server; ignored on write. See `If-Match`.' })),
  createdAt: Type.Optional(Type.Unknown({ description: 'Set by the server; ignored on write.' })),
  updatedAt: Type.Optional(Type.Unknown({ description: 'Set by the server; ignored on write.' })),
}

export const CreateProfile = Type.Object({ ...ProfileInput.properties, ...computed }, { additionalProperties: false })

/** The path names the profile. A name in the body must agree. */
export const ReplaceProfile = Type.Object(
  { ...CreateProfile.properties, name: Type.Optional(ProfileInput.properties.name) },
  { additionalProperties: false },
)
export type ReplaceProfile = Static<typeof ReplaceProfile>

/** Where the live fleet would currently run a sandbox worker of the profile. Specification 2.6. */
export const WorkerPlacement = Type.Object(
  {
    substrate: Type.Union([Type.String(), Type.Null()], { description: 'Null when none could be chosen.' }),
    source: Type.Union([Type.Literal('profile'), Type.Literal('default'), Type.Literal('unresolved')], {
      description: '`profile`: it names the substrate; `default`: the default of the runners.',
    }),
    servable: Type.Boolean({ description: 'Whether any live runner could run the worker.' }),
    requested: Type.Optional(Type.String({ description: 'What the profile requests, if it gets something else.' })),
    detail: Type.Optional(Type.String({ description: 'Why.' })),
  },
  { description: 'Computed on read, for `workerMode: sandbox` while the fleet is known.' },
)
export type WorkerPlacement = Static<typeof WorkerPlacement>

/** A stored profile as clients read it. */
const { placement: _, ...stored } = Profile.properties
export const ProfileView = Type.Object({ ...stored, workerPlacement: Type.Optional(WorkerPlacement) })
export type ProfileView = Static<typeof ProfileView>

export const ListQuery = Type.Object({
  ...PageQuery.properties,
  q: Type.Optional(
    Type.String({ maxLength: 64, pattern: '^[^\\u0000]*$', description: 'Part of the name; case does not matter.' }),
  ),
})

const runners = Type.Array(
  Type.String({ pattern: '^[0-9a-f]{8}$', description: 'Hash of a runner, as `GET /api/topology` shows it.' }),
  { minItems: 1, maxItems: 1_000, uniqueItems: true, description: 'Runners of the pool; any by default.' },
)
const runtimes = Type.Array(Type.String({ pattern: '^[a-z][a-z0-9_-]{0,31}$' }), {
  minItems: 1,
  maxItems: 50,
  uniqueItems: true,
  description: 'Runtimes of the profiles that may name the pool; any by default.',
})

/** What a client writes. A pool never changes: profiles move from one to another instead. */
export const PoolInput = Type.Object(
  {
    name: Type.String({ pattern: profileName.pattern!, description: 'Unique in the tenant; profiles name it.' }),
    description: Type.Optional(Type.String({ maxLength: 500, pattern: '^[^\\u0000]*$' })),
    runners: Type.Optional(runners),
    runtimes: Type.Optional(runtimes),
  },
  { additionalProperties: false },
)
export type PoolInput = Static<typeof PoolInput>

/** A part of the fleet that profiles name. Specification 4.6. */
export const Pool = Type.Object({
  ...PoolInput.properties,
  id: Type.String({ description: '`pool_…`' }),
  createdAt: Type.String({ format: 'date-time' }),
})
export type Pool = Static<typeof Pool>

/** One stored state of a profile. */
export const VersionEntry = Type.Object({
  version: Type.Integer(),
  createdAt: Type.String({ format: 'date-time' }),
  createdBy: Type.Optional(Type.String({ description: 'Id of the key that wrote it.' })),
  restoredFrom: Type.Optional(Type.Integer({ description: 'The older version that it restores.' })),
})
export type VersionEntry = Static<typeof VersionEntry>
export const ProfileVersion = Type.Object({ ...VersionEntry.properties, profile: Type.Object(stored) })
export type ProfileVersion = Static<typeof ProfileVersion>

/** Any text is accepted: a name that no profile can have is simply unknown. */
export const NameParams = Type.Object({ name: Type.String() })
export const VersionParams = Type.Object({
  name: Type.String(),
  version: Type.Integer({ minimum: 1, maximum: 2_147_483_647 }),
})

const etag = '(W/)?"[^"]*"'
export const WriteHeaders = Type.Object({
  'if-match': Type.Optional(
    Type.String({
      pattern: `^\\s*(\\*|${etag}(\\s*,\\s*${etag})*)\\s*$`,
      description: 'The `ETag` of the profile as you read it: 412 if it has changed since.',
    }),
  ),
})

/** The version in quotes. `workerPlacement` depends on the fleet and is not part of the entity that a writer could overwrite. */
export const etagOf = (version: number | undefined): string => `"${version}"`

/** The versions that an `If-Match` header allows. Undefined: any version. A weak or foreign tag never matches. */
export function matchedVersions(ifMatch: string | undefined): number[] | undefined {
  const text = ifMatch?.trim()
  if (text === undefined || text === '*') return undefined
  return [...text.matchAll(/(W\/)?"([^"]*)"/g)].flatMap(([, weak, tag = '']) =>
    weak === undefined && /^[1-9]\d{0,8}$/.test(tag) ? [Number(tag)] : [],
  )
}
