/** The parts of a JSON Schema that the rules follow; what else it asks for may not be met. */
interface Schema {
  readonly type?: string | readonly string[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly default?: unknown
  readonly properties?: Readonly<Record<string, Schema>>
  readonly items?: Schema
  readonly minItems?: number
  readonly anyOf?: readonly Schema[]
  readonly oneOf?: readonly Schema[]
  readonly allOf?: readonly Schema[]
  readonly $ref?: string
  readonly $defs?: Readonly<Record<string, Schema>>
  readonly definitions?: Readonly<Record<string, Schema>>
  readonly format?: string
  readonly minLength?: number
  readonly maxLength?: number
  readonly minimum?: number
  readonly maximum?: number
}

/** A schema may refer to itself. */
const maxDepth = 8

const formats: Readonly<Record<string, string>> = {
  'date-time': '2026-01-01T00:00:00Z',
  date: '2026-01-01',
  time: '00:00:00Z',
  email: 'demo@example.com',
  uri: 'https://example.com/',
  uuid: '00000000-0000-4000-8000-000000000000',
}

/** A value in the form of a schema: texts are `said`, numbers the first one of the question. */
export function sampleOf(root: unknown, said: string, question: string): unknown {
  const number = Number(/-?\d+(?:\.\d+)?/.exec(question)?.[0] ?? 0)
  const sample = (schema: Schema, depth: number): unknown => {
    if (depth > maxDepth) return null
    if ('const' in schema) return schema.const
    if (schema.enum) return schema.enum[0]
    if ('default' in schema) return schema.default
    const other = schema.$ref === undefined ? (schema.anyOf ?? schema.oneOf)?.[0] : named(root as Schema, schema.$ref)
    if (other) return sample(other, depth + 1)
    if (schema.allOf) return sample(Object.assign({}, schema, { allOf: undefined }, ...schema.allOf), depth + 1)
    const type = typeof schema.type === 'string' ? schema.type : schema.type?.find((one) => one !== 'null')
    if (type === 'object' || schema.properties) {
      const members = Object.entries(schema.properties ?? {})
      return Object.fromEntries(members.map(([name, member]) => [name, sample(member, depth + 1)]))
    }
    if (type === 'array')
      return Array.from({ length: schema.minItems ?? 1 }, () => sample(schema.items ?? {}, depth + 1))
    if (type === 'integer' || type === 'number') return within(schema, type === 'integer' ? Math.round(number) : number)
    if (type === 'boolean') return true
    if (type === 'null') return null
    const text = formats[schema.format ?? ''] ?? said
    return text.slice(0, schema.maxLength).padEnd(schema.minLength ?? 0, '.')
  }
  return sample(root as Schema, 0)
}

const named = (root: Schema, reference: string): Schema | undefined => {
  const name = /^#\/(?:\$defs|definitions)\/([^/]+)$/.exec(reference)?.[1]
  return reference === '#' ? root : name === undefined ? {} : (root.$defs?.[name] ?? root.definitions?.[name] ?? {})
}

const within = ({ minimum = -Infinity, maximum = Infinity }: Schema, number: number): number =>
  Math.max(minimum, Math.min(maximum, number))
