import { type Static, Type } from '@sinclair/typebox'
import { clientIdPattern } from '#contracts/ids'
import { PageQuery } from '#contracts/paging'
import { noSuchTime } from './errors.ts'

/** The pattern excludes NUL, because PostgreSQL cannot store it in text. */
const line = (maxLength: number, description: string) =>
  Type.String({ minLength: 1, maxLength, pattern: '^[^\\u0000]*$', description })
const text = (maxLength: number, description: string) => Type.String({ maxLength, description })
export const Time = Type.String({
  pattern: '^\\d{4}-\\d{2}-\\d{2}(T\\d{2}:\\d{2}(:\\d{2}(\\.\\d{1,9})?)?(Z|[+-]\\d{2}:\\d{2}))?$',
  description: 'ISO 8601: a day, or a time with its zone.',
})
const endUserId = line(256, 'The person that it is about, as in `metadata.end_user_id` of chats.')
const category = line(64, 'Your own word to filter memories by.')
const sources = ['curated', 'mined'] as const

/** The content of a memory and its origin. Either `rawInput` or `processedContent` is required. Specification 2.11. */
export const CreateMemory = Type.Object(
  {
    rawInput: Type.Optional(
      text(
        32_768,
        'A text from which the memory is extracted, by the configured model or by rules. Text that is not worth keeping is refused.',
      ),
    ),
    processedContent: Type.Optional(
      text(8_000, 'The memory in the words of its author: it is stored unchanged, and ranks above extracted memories.'),
    ),
    category: Type.Optional(category),
    summary: Type.Optional(line(1_000, 'A summary in one sentence.')),
    endUserId: Type.Optional(endUserId),
    sessionId: Type.Optional(
      Type.String({
        pattern: clientIdPattern,
        description: 'The conversation in which it was said: what was said before it helps to find it.',
      }),
    ),
    runId: Type.Optional(Type.String({ pattern: clientIdPattern, description: 'The run that it comes from.' })),
    eventAt: Type.Optional(Type.String({ ...Time, description: 'When it happened or was said; now by default.' })),
    confidence: Type.Optional(
      Type.Number({
        minimum: 0,
        maximum: 1,
        description: 'How sure it is; by default 1 with `processedContent`, 0.7 with `rawInput`.',
      }),
    ),
    ttlSeconds: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 315_360_000,
        description: 'It is forgotten after this; never by default.',
      }),
    ),
    supersedes: Type.Optional(line(64, 'Id of the memory of this profile that it supersedes, which stays as history.')),
  },
  { additionalProperties: false },
)
export type CreateMemory = Static<typeof CreateMemory>

const time = (description: string) => Type.String({ format: 'date-time', description })

export const Memory = Type.Object({
  id: Type.String({ description: '`mem_…`' }),
  profile: Type.String(),
  endUserId: Type.Optional(Type.String()),
  sessionId: Type.Optional(Type.String()),
  runId: Type.Optional(Type.String()),
  category: Type.Optional(Type.String()),
  rawInput: Type.Optional(Type.String()),
  processedContent: Type.String({ description: 'What is remembered: one statement a line.' }),
  summary: Type.Optional(Type.String()),
  source: Type.Union(
    sources.map((one) => Type.Literal(one)),
    { description: '`curated`: somebody chose the words. `mined`: they were taken from a text.' },
  ),
  confidence: Type.Number(),
  language: Type.String({ description: 'The language of the index: en, de, es, ru or zh.' }),
  eventAt: Type.Optional(time('When it happened or was said.')),
  createdAt: time('When it was stored.'),
  ttlSeconds: Type.Optional(Type.Integer()),
  expiresAt: Type.Optional(time('When it is forgotten.')),
  supersedes: Type.Optional(Type.String({ description: 'The memory that it superseded.' })),
  supersededBy: Type.Optional(Type.String({ description: 'The memory that superseded it.' })),
  supersededAt: Type.Optional(time('Since when it is history.')),
})
export type Memory = Static<typeof Memory>

const reasons = ['duplicate', 'junk'] as const
export const Stored = Type.Composite([Type.Object({ stored: Type.Literal(true) }), Memory])
export const NotStored = Type.Object({
  stored: Type.Literal(false),
  reason: Type.Union(
    reasons.map((one) => Type.Literal(one)),
    { description: '`duplicate`: the memory `id` already says the same. `junk`: there is nothing to remember.' },
  ),
  detail: Type.Optional(
    Type.String({ description: 'For junk: empty, greeting, system_prompt, tool_noise or recalled.' }),
  ),
  id: Type.Optional(Type.String()),
})
export type NotStored = Static<typeof NotStored>

export const lists = ['words', 'names', 'times', 'similar', 'linked', 'meaning', 'recent'] as const
export type ListName = (typeof lists)[number]

export const Why = Type.Object({
  list: Type.Union(
    lists.map((one) => Type.Literal(one)),
    {
      description:
        '`words`, `names`, `times`: it has those of the question. `similar`: words spelled much alike. `linked`: names of other hits. `meaning`: by vectors. `recent`: it is among the newest of them.',
    },
  ),
  rank: Type.Integer({ description: 'Its place in that list, from 1.' }),
  matched: Type.Optional(Type.Array(Type.String(), { description: 'What both have.' })),
})
export type Why = Static<typeof Why>

export const Hit = Type.Composite([
  Memory,
  Type.Object({
    score: Type.Number({ description: '0 to 1: how much of the question it covers, and how high it ranks.' }),
    why: Type.Array(Why),
  }),
])
export type Hit = Static<typeof Hit>
export const Hits = Type.Object({ items: Type.Array(Hit) })

const flag = (description: string) => Type.Optional(Type.Boolean({ default: false, description }))
const filters = {
  endUserId: Type.Optional(Type.String({ ...endUserId, description: 'Only memories of this person.' })),
  shared: flag('With `endUserId`: also memories without an end user.'),
  category: Type.Optional(category),
  from: Type.Optional(
    Type.String({ ...Time, description: 'Only memories of this time or later, by `eventAt`, or else `createdAt`.' }),
  ),
  to: Type.Optional(Type.String({ ...Time, description: 'Those before this time.' })),
}

export const SearchQuery = Type.Object({
  q: Type.Optional(text(8_000, 'The question, in any words; empty: everything, newest first.')),
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: 8 })),
  minScore: Type.Optional(Type.Number({ minimum: 0, maximum: 1, default: 0.05 })),
  maxTokens: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 1_000_000,
      description: 'The approximate most tokens of all contents together; the best hits come first.',
    }),
  ),
  at: Type.Optional(
    Type.String({
      ...Time,
      description: 'The time from which `yesterday` in the question is counted; now by default.',
    }),
  ),
  ...filters,
  includeSuperseded: flag(
    'Includes superseded memories. A question about the past (`used to`, `before`) finds them anyway.',
  ),
})
export type SearchQuery = Static<typeof SearchQuery>

export const ListQuery = Type.Object({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: 100 })),
  offset: PageQuery.properties.offset,
  cursor: PageQuery.properties.cursor,
  ...filters,
  sessionId: Type.Optional(Type.String({ pattern: clientIdPattern })),
  includeSuperseded: flag('History as well.'),
})
export type ListQuery = Static<typeof ListQuery>

export const BankQuery = Type.Object({
  ...PageQuery.properties,
  q: Type.Optional(
    Type.String({
      maxLength: 200,
      pattern: '^[^\\u0000]*$',
      description: 'Part of a content, a summary, a profile’s name or an id; case does not matter.',
    }),
  ),
  category: Type.Optional(category),
})
export type BankQuery = Static<typeof BankQuery>

/** The memories of all profiles. With `limit` the answer is one page; without it, every profile with its memories. */
export const Bank = Type.Object({
  total: Type.Integer({ description: 'Memories that fit, on all pages; counted up to 10,000.' }),
  profilesWithMemory: Type.Integer({ description: 'Of the tenant, whatever `q` and `category` choose.' }),
  limit: Type.Optional(Type.Integer()),
  offset: Type.Optional(Type.Integer()),
  profiles: Type.Optional(
    Type.Array(
      Type.Object({
        profile: Type.String(),
        profileId: Type.Optional(Type.String({ description: 'Absent when the profile was deleted.' })),
        total: Type.Integer(),
        memories: Type.Array(Memory, {
          description: 'Newest first, 100 at most; the others are at /api/profiles/{name}/memories.',
        }),
      }),
      { description: 'Without `limit`.' },
    ),
  ),
  items: Type.Optional(Type.Array(Memory, { description: 'With `limit`: of all profiles, newest first.' })),
})

export const Stats = Type.Object({
  memories: Type.Integer({ description: 'History included.' }),
  current: Type.Integer({ description: 'Memories that were not superseded.' }),
  bytes: Type.Integer(),
  profilesWithMemory: Type.Integer(),
  endUsers: Type.Integer(),
  bySource: Type.Record(Type.String(), Type.Integer()),
  byCategory: Type.Record(Type.String(), Type.Integer(), {
    description: 'The 100 largest; `` means without a category.',
  }),
  byProfile: Type.Record(Type.String(), Type.Integer(), { description: 'The 100 largest.' }),
  refused: Type.Record(Type.String(), Type.Integer(), {
    description: 'How many memories were refused since the beginning, by reason.',
  }),
  oldest: Type.Optional(Type.String({ format: 'date-time' })),
  newest: Type.Optional(Type.String({ format: 'date-time' })),
  search: Type.Object(
    { similarWords: Type.Boolean(), meaning: Type.Boolean() },
    { description: 'Whether pg_trgm, and pgvector with an embedding provider, are available.' },
  ),
})
export type Stats = Static<typeof Stats>

/** Accepts any text. A name or id that cannot exist is answered like an unknown one. */
export const NameParams = Type.Object({ name: Type.String({ description: 'Name of the profile.' }) })
export const MemoryParams = Type.Object({
  ...NameParams.properties,
  id: Type.String({ description: 'Id of the memory.' }),
})

/** A time in a request; 400 for a day that does not exist. */
export function timeOf(text: string, path: string): Date {
  const time = new Date(text.startsWith('0000') ? '' : text)
  const day = text.slice(0, 10)
  // JavaScript reads the 31st of a shorter month as a day of the next month. The time zone can also move a time out of the years that PostgreSQL
  // reads.
  if (
    Number.isNaN(time.getTime()) ||
    !/^(?!0000)\d{4}-/.test(time.toISOString()) ||
    new Date(`${day}T00:00:00Z`).toISOString().slice(0, 10) !== day
  )
    throw noSuchTime(path)
  return time
}
