import fc from 'fast-check'

/** As much of JSON Schema as our OpenAPI documents use. */
export interface Schema {
  readonly type?: string | readonly string[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly anyOf?: readonly Schema[]
  readonly allOf?: readonly Schema[]
  readonly properties?: Readonly<Record<string, Schema>>
  readonly required?: readonly string[]
  readonly additionalProperties?: boolean | Schema
  readonly items?: Schema
  readonly minItems?: number
  readonly maxItems?: number
  readonly pattern?: string
  readonly format?: string
  readonly minLength?: number
  readonly maxLength?: number
  readonly minimum?: number
  readonly maximum?: number
}

/** Text that has broken somebody's server before. */
export const hostileText: readonly string[] = [
  '',
  ' ',
  '\0',
  'a\0b',
  '\ud800',
  '\u{1F600}\u200d',
  '\r\nSet-Cookie: x=1',
  "'; DROP TABLE runs; --",
  '%',
  '_%',
  '\\',
  '../../etc/passwd',
  '..%2f..',
  '%zz',
  '%00',
  '__proto__',
  'constructor',
  'null',
  'NaN',
  '-1',
  '1e309',
  '9007199254740993',
  '99999999999999999999',
  'ð'.repeat(300),
  'x'.repeat(5_000),
  '{"a":1}',
  '[object Object]',
  '0x7f.1',
]
const hostile: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom<unknown>(...hostileText, null, true, -1, 0, 1.5, 2 ** 53, -1e308, [], {}, [[]], { a: { b: [] } }),
  fc.jsonValue({ maxDepth: 3 }),
)

/** Values of a schema; with `mutate`, some parts of them are not what the schema asks for. `known` are texts that name things. */
export function valuesOf(schema: Schema, known: readonly string[], mutate: boolean): fc.Arbitrary<unknown> {
  const right = rightValues(schema, known, mutate)
  return mutate ? fc.oneof({ weight: 7, arbitrary: right }, { weight: 1, arbitrary: hostile }) : right
}

function rightValues(schema: Schema, known: readonly string[], mutate: boolean): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const)
  if (schema.enum) return fc.constantFrom(...schema.enum)
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map((one) => valuesOf(one, known, mutate)))
  if (schema.allOf) {
    return fc
      .tuple(...schema.allOf.map((one) => valuesOf(one, known, mutate)))
      .map((parts) => Object.assign({}, ...(parts as object[])) as unknown)
  }
  const type = typeof schema.type === 'string' ? schema.type : schema.type?.[0]
  switch (type) {
    case 'string':
      return texts(schema, known)
    case 'integer':
      return fc.integer({ min: bounded(schema.minimum, -10), max: bounded(schema.maximum, 1_000) })
    case 'number':
      return fc.double({ min: bounded(schema.minimum, -10), max: bounded(schema.maximum, 1_000), noNaN: true })
    case 'boolean':
      return fc.boolean()
    case 'null':
      return fc.constant(null)
    case 'array':
      return fc.array(valuesOf(schema.items ?? {}, known, mutate), {
        minLength: schema.minItems ?? 0,
        maxLength: Math.min(schema.maxItems ?? 3, 3),
      })
    case 'object':
      return objects(schema, known, mutate)
    default:
      return fc.jsonValue({ maxDepth: 2 })
  }
}

const bounded = (limit: number | undefined, otherwise: number): number =>
  limit === undefined ? otherwise : Math.max(-1e6, Math.min(limit, 1e6))

function texts(schema: Schema, known: readonly string[]): fc.Arbitrary<string> {
  if (schema.format === 'date-time') return fc.date({ noInvalidDate: true }).map((date) => date.toISOString())
  const max = Math.min(schema.maxLength ?? 60, 60)
  const plain = schema.pattern
    ? fc.stringMatching(new RegExp(schema.pattern, 'u')).map((text) => text.slice(0, Math.max(max, 40)))
    : fc.string({ minLength: schema.minLength ?? 0, maxLength: max, unit: 'binary' })
  return known.length === 0
    ? plain
    : fc.oneof({ weight: 2, arbitrary: plain }, { weight: 1, arbitrary: fc.constantFrom(...known) })
}

function objects(schema: Schema, known: readonly string[], mutate: boolean): fc.Arbitrary<unknown> {
  const properties = Object.entries(schema.properties ?? {}).map(([name, one]) => [name, valuesOf(one, known, mutate)])
  const required = mutate ? [] : [...(schema.required ?? [])]
  const own = fc.record(Object.fromEntries(properties) as Record<string, fc.Arbitrary<unknown>>, {
    requiredKeys: required,
  })
  if (!mutate) return own
  const full = fc.record(Object.fromEntries(properties) as Record<string, fc.Arbitrary<unknown>>, {
    requiredKeys: [...(schema.required ?? [])],
  })
  const more = fc.dictionary(fc.string({ maxLength: 8 }), hostile, { maxKeys: 1 })
  return fc.oneof(
    { weight: 6, arbitrary: full },
    { weight: 1, arbitrary: own },
    { weight: 1, arbitrary: fc.tuple(full, more).map(([a, b]) => Object.assign({}, a, b) as unknown) },
  )
}
