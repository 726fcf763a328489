/** The keywords that OpenAI accepts in a strict schema. It refuses a request with any other keyword. */
const strictWords: ReadonlySet<string> = new Set([
  'type',
  'properties',
  'required',
  'additionalProperties',
  'items',
  'enum',
  'const',
  'anyOf',
  '$ref',
  '$defs',
  'title',
  'description',
])

/** Whether an answer's schema may be marked as strict: an object in which every part lists and requires all its properties and allows no others. */
export const isStrictSchema = (schema: object): boolean =>
  (schema as { type?: unknown }).type === 'object' && isStrict(schema)

function isStrict(schema: unknown): boolean {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) return false
  if (Object.keys(schema).some((word) => !strictWords.has(word))) return false
  const {
    type,
    properties = {},
    required = [],
    additionalProperties,
    items,
    anyOf = [],
    $defs = {},
  } = schema as {
    readonly type?: unknown
    readonly properties?: Readonly<Record<string, unknown>>
    readonly required?: readonly string[]
    readonly additionalProperties?: unknown
    readonly items?: unknown
    readonly anyOf?: readonly unknown[]
    readonly $defs?: Readonly<Record<string, unknown>>
  }
  const isObject = type === 'object' || Object.keys(properties).length > 0
  if (isObject && additionalProperties !== false) return false
  if (Object.keys(properties).some((name) => !required.includes(name))) return false
  const inner = [
    ...Object.values(properties),
    ...Object.values($defs),
    ...anyOf,
    ...(items === undefined ? [] : [items]),
  ]
  return inner.every(isStrict)
}
