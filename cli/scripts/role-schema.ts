import { glob } from 'node:fs/promises'
import { join } from 'node:path'
import { Entry, RoleFile, root } from '../../kernel/config.ts'
import { loadPlugin } from '../../kernel/config-modules.ts'

type Json = Record<string, unknown>

/** Any value may also come from the environment; only plain text already allows that. */
const substitution = { type: 'string', pattern: '\\$\\{' }

/** The schema for what stands in the file: before substitution, without what only the kernel understands. */
function written(schema: Json): Json {
  const { properties, anyOf, items, patternProperties, ...rest } = schema
  const described = Object.fromEntries(Object.entries(rest).filter(([key, value]) => isForEditors(key, value)))
  if (schema['type'] === 'object') {
    const values = (properties ?? {}) as Record<string, Json>
    const patterns = patternProperties as Record<string, Json> | undefined
    return {
      ...described,
      properties: mapValues(values, written),
      ...(patterns ? { additionalProperties: written(Object.values(patterns)[0]!) } : {}),
    }
  }
  if (schema['type'] === 'array') return { ...described, items: written(items as Json) }
  const { description, ...type } = described
  const value = anyOf ? { enum: (anyOf as Json[]).map((choice) => choice['const']) } : type
  const free = schema['type'] === 'string' && schema['pattern'] === undefined
  return { ...(description ? { description } : {}), ...(free ? value : { anyOf: [value, substitution] }) }
}

/** Leaves out `expects`, which is for our own sentences, and `required`, because a default may fill a setting in. */
const isForEditors = (key: string, value: unknown): boolean =>
  key !== 'expects' && key !== 'required' && (key !== 'default' || typeof value !== 'object' || Array.isArray(value))

const mapValues = (values: Record<string, Json>, map: (value: Json) => Json): Record<string, Json> =>
  Object.fromEntries(Object.entries(values).map(([key, value]) => [key, map(value)]))

/** An entry of a role file: a plugin's settings with `use` beside them, or nothing at all. */
function entry(config: Json): Json {
  const { properties, ...settings } = written(config)
  const beside = written(JSON.parse(JSON.stringify(Entry)) as Json)['properties'] as Json
  return { ...settings, type: ['object', 'null'], properties: { ...beside, ...(properties as Json) } }
}

/** config/role.schema.json, from the settings of every plugin here, so that editors complete and check role files. */
export async function roleSchema(): Promise<string> {
  const uses: string[] = []
  // A part of a plugin that stands in role files by itself is a folder of it; a provider that sends webhooks has a second
  // plugin, for the conductor.
  const patterns = ['{plugins,runtimes,providers}/*/index.ts', 'plugins/*/*/index.ts', 'providers/*/events.ts']
  for await (const file of glob(patterns, { cwd: root })) {
    uses.push(file.replaceAll('\\', '/').replace(/(\/index)?\.ts$/, ''))
  }
  const definitions: Record<string, Json> = {}
  for (const use of uses.sort()) {
    const { config } = await loadPlugin(use, join(root, 'config/role.yaml'))
    definitions[use] = entry(JSON.parse(JSON.stringify(config)) as Json)
  }
  const reference = (use: string): Json => ({ $ref: `#/$defs/${use.replaceAll('/', '~1')}` })
  const bare = uses.filter((use) => /^plugins\/[^/]+$/.test(use))
  const role = written(JSON.parse(JSON.stringify(RoleFile)) as Json)
  const properties = role['properties'] as Record<string, Json>
  const { description } = properties['plugins']!
  const schema = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: 'Agent Orc role file',
    ...role,
    required: ['role', 'plugins'],
    properties: {
      ...properties,
      plugins: {
        description,
        type: 'object',
        properties: Object.fromEntries(bare.map((use) => [use.slice('plugins/'.length), reference(use)])),
        additionalProperties: {
          type: 'object',
          required: ['use'],
          properties: { use: { anyOf: [{ enum: uses }, { type: 'string' }] } },
          allOf: uses.map((use) => ({
            if: { required: ['use'], properties: { use: { const: use } } },
            // oxlint-disable-next-line unicorn/no-thenable -- a word of JSON Schema
            then: reference(use),
          })),
        },
      },
    },
    $defs: definitions,
  }
  return `${JSON.stringify(schema, null, 2)}\n`
}
