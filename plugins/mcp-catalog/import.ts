import { type Static, Type } from '@sinclair/typebox'
import { overLimit } from '#contracts/limits'
import { secretsIn } from '#contracts/secrets'
import { catalogErrors } from './errors.ts'
import { type CreateEntry, entryFields, isEntryName, namePattern } from './schema.ts'

/** The pattern of any key does not match one with a line break, so without this the value of such a key would not be checked. */
const table = { maxProperties: 50, additionalProperties: false } as const

const valueFields = {
  value: Type.Optional(Type.String({ maxLength: 8_000 })),
  default: Type.Optional(Type.String({ maxLength: 8_000 })),
}
const Variable = Type.Object(valueFields, { additionalProperties: true })
type Variables = Readonly<Record<string, Static<typeof Variable>>>
const variables = Type.Optional(Type.Record(Type.String(), Variable, table))

/** A header that a server.json asks for, or gives. */
const Header = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 200 })),
    ...valueFields,
    isRequired: Type.Optional(Type.Boolean()),
    isSecret: Type.Optional(Type.Boolean()),
    variables,
  },
  { additionalProperties: true },
)

const Remote = Type.Object(
  {
    type: Type.String({ maxLength: 100 }),
    url: Type.String({ maxLength: 2_000 }),
    headers: Type.Optional(Type.Array(Header, { maxItems: 50 })),
    variables,
  },
  { additionalProperties: true },
)
type Remote = Static<typeof Remote>

const serverFields = {
  name: Type.Optional(Type.String({ maxLength: 300 })),
  description: Type.Optional(Type.String({ maxLength: 10_000 })),
  remotes: Type.Optional(Type.Array(Remote, { maxItems: 50 })),
  packages: Type.Optional(Type.Array(Type.Unknown(), { maxItems: 200 })),
}
const ServerJson = Type.Object(serverFields, {
  additionalProperties: true,
  description:
    'A `server.json` of the MCP registry. The first remote with streamable HTTP is used, or else the first with SSE.',
})
type ServerJson = Static<typeof ServerJson>

const { toolPolicy, allowedTools, oauth } = entryFields
/** A server.json, either by itself or in `server` together with the values that it leaves open. */
export const ImportBody = Type.Object(
  {
    ...serverFields,
    server: Type.Optional(ServerJson),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String({ maxLength: 8_000 }), {
        ...table,
        description: 'With `server`: values of its headers; secret ones as `secret://<name>`.',
      }),
    ),
    variables: Type.Optional(
      Type.Record(Type.String(), Type.String({ maxLength: 2_000 }), {
        ...table,
        description: 'With `server`: values for `{name}` in its URL and headers.',
      }),
    ),
    active: Type.Optional(Type.Boolean({ description: 'With `server`.' })),
    oauth,
    toolPolicy,
    allowedTools,
  },
  {
    additionalProperties: true,
    description:
      'A `server.json`, or `{"server": <server.json>}` as the registry answers, where `name` is the name of the entry; otherwise that is the last part of the name of the server.',
  },
)
export type ImportBody = Static<typeof ImportBody>

/**
 * The entry that a server.json describes. `not_importable` (400) with a sentence when it describes no usable server, 409 `limit_exceeded` when the
 * entry would be larger than `most` bytes.
 */
export function entryFrom(body: ImportBody, most: number): CreateEntry {
  const { server = body, headers = {}, variables = {}, active, ...more } = body
  const wrapped = body.server !== undefined
  const options = wrapped ? { headers, variables } : { headers: {}, variables: {} }
  const remote = remoteOf(server)
  const filled = fill(remote, options, most)
  const { description } = server
  return {
    name: nameOf(wrapped ? body.name : undefined, server.name),
    url: filled.url,
    ...(remote.type === 'sse' ? { transport: 'sse' as const } : {}),
    ...(Object.keys(filled.headers).length > 0 ? { headers: filled.headers } : {}),
    ...(description === undefined || description === '' ? {} : { description: description.slice(0, 2_000) }),
    ...(wrapped ? optionsOf(more, active) : {}),
  }
}

function optionsOf({ oauth, toolPolicy, allowedTools }: ImportBody, active: boolean | undefined) {
  return {
    ...(oauth ? { oauth } : {}),
    ...(toolPolicy ? { toolPolicy } : {}),
    ...(allowedTools ? { allowedTools } : {}),
    ...(active === undefined ? {} : { active }),
  }
}

function remoteOf({ remotes = [], packages = [] }: ServerJson): Remote {
  const found = ['streamable-http', 'sse'].flatMap((type) => remotes.filter((one) => one.type === type))[0]
  if (found) return found
  if (remotes.length > 0) throw refused('Its remotes speak neither streamable-http nor sse.')
  throw packages.length > 0
    ? refused(
        'It has packages alone, which would have to be run here; only servers that are reached by a URL (`remotes`) can be entered.',
      )
    : refused('It has no `remotes`, so there is no server to be reached.')
}

function nameOf(wanted: string | undefined, full = ''): string {
  const name =
    wanted ??
    full
      .slice(full.lastIndexOf('/') + 1)
      .replaceAll(/[^A-Za-z0-9_-]+/g, '-')
      .slice(0, 64)
  if (isEntryName(name)) return name
  throw refused(`The entry needs a name of its own (${namePattern}): send {"name": …, "server": <server.json>}.`)
}

/** URL and headers with their variables replaced. */
function fill(
  { url, headers: asked = [], variables: declared = {} }: Remote,
  given: { readonly headers: Readonly<Record<string, string>>; readonly variables: Readonly<Record<string, string>> },
  most: number,
) {
  const missing: string[] = []
  let left = most
  // A text may name one variable thousands of times, so what it becomes is counted before it is made.
  const counted = (text: string): string => {
    left -= text.length
    if (left < 0) throw overLimit('mcpEntryBytes', most)
    return text
  }
  const filled = (text: string, inputs: Variables): string =>
    text.replaceAll(/\{([^{}]+)\}/g, (_, name: string) => {
      const known = Object.hasOwn(inputs, name) ? inputs[name] : undefined
      const value = own(given.variables, name) ?? known?.value ?? known?.default
      if (value === undefined) missing.push(`variables.${name}`)
      return counted(value ?? '')
    })
  const values = new Map(Object.entries(given.headers).map(([name, value]) => [name.toLowerCase(), value]))
  const headers: Record<string, string> = {}
  for (const input of asked) {
    const { name = '', value, default: usual, isRequired = false, isSecret = false, variables = {} } = input
    const text =
      values.get(name.toLowerCase()) ?? (value === undefined ? usual : filled(value, { ...declared, ...variables }))
    values.delete(name.toLowerCase())
    if (text === undefined) {
      if (isRequired) missing.push(`headers.${name}`)
      continue
    }
    if (isSecret && secretsIn(text).length === 0) {
      throw refused(
        `The header '${name}' is a secret: store it with POST /api/secrets and send secret://<name> in \`headers\`.`,
      )
    }
    headers[name] = text
  }
  const [stranger] = values.keys()
  if (stranger !== undefined) throw refused(`The server does not ask for a header '${stranger}'.`)
  const where = filled(url, declared)
  if (missing.length > 0) {
    const which = [...new Set(missing)].join(', ')
    throw refused(`It leaves open what is to be sent: ${which}. Send {"server": <server.json>} with these beside it.`)
  }
  return { url: where, headers }
}

const own = (table: Readonly<Record<string, string>>, name: string): string | undefined =>
  Object.hasOwn(table, name) ? table[name] : undefined
const refused = (message: string) => catalogErrors.notImportable({ message })
