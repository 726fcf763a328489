import { type Static, Type } from '@sinclair/typebox'
import { profileName } from './profiles.ts'

const runners = Type.Array(
  Type.String({ pattern: '^[0-9a-f]{8}$', description: 'Hash of a runner, as `GET /api/topology` shows it.' }),
  { minItems: 1, maxItems: 1_000, uniqueItems: true, description: 'Runners of the pool; any unless given.' },
)
const runtimes = Type.Array(Type.String({ pattern: '^[a-z][a-z0-9_-]{0,31}$' }), {
  minItems: 1,
  maxItems: 50,
  uniqueItems: true,
  description: 'Runtimes of the profiles that may name the pool; any unless given.',
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
