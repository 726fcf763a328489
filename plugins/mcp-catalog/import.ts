import { type Static, Type } from '@sinclair/typebox'
import { secretsIn } from '#contracts/secrets'
import { catalogErrors } from './errors.ts'
import { type CreateEntry, entryFields, isEntryName, namePattern } from './schema.ts'

/** A value that a server.json asks for, or gives. */
const Input = Type.Object(
  {
    name: Type.Optional(Type.String({ maxLength: 200 })),
    value: Type.Optional(Type.String({ maxLength: 8_000 })),
    default: Type.Optional(Type.String({ maxLength: 8_000 })),
    isRequired: Type.Optional(Type.Boolean()),
    isSecret: Type.Optional(Type.Boolean()),
  },
  { additionalProperties: true },
)
type Input = Static<typeof Input> & { readonly variables?: Readonly<Record<string, Input>> }

const Remote = Type.Object(
  {
    type: Type.String({ maxLength: 100 }),
    url: Type.String({ maxLength: 2_000 }),
    headers: Type.Optional(Type.Array(Input, { maxItems: 50 })),
    variables: Type.Optional(Type.Record(Type.String({ maxLength: 200 }), Input, { maxProperties: 50 })),
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
      Type.Record(Type.String({ maxLength: 200 }), Type.String({ maxLength: 8_000 }), {
        maxProperties: 50,
        description: 'With `server`: values of its headers; secret ones as `secret://<name>`.',
      }),
    ),
    variables: Type.Optional(
      Type.Record(Type.String({ maxLength: 200 }), Type.String({ maxLength: 2_000 }), {
        maxProperties: 50,
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

/** The entry that a server.json describes. `not_importable` (400) with a sentence when it describes no usable server. */
export function entryFrom(body: ImportBody): CreateEntry {
  const { server = body, headers = {}, variables = {}, active, ...more } = body
  const wrapped = body.server !== undefined
  const options = wrapped ? { headers, variables } : { headers: {}, variables: {} }
  const remote = remoteOf(server)
  const filled = fill(remote, options)
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
) {
  const missing: string[] = []
  const filled = (text: string, inputs: Readonly<Record<string, Input>>): string =>
    text.replaceAll(/\{([^{}]+)\}/g, (_, name: string) => {
      const known = Object.hasOwn(inputs, name) ? inputs[name] : undefined
      const value = own(given.variables, name) ?? known?.value ?? known?.default
      if (value === undefined) missing.push(`variables.${name}`)
      return value ?? ''
    })
  const values = new Map(Object.entries(given.headers).map(([name, value]) => [name.toLowerCase(), value]))
  const headers: Record<string, string> = {}
  for (const input of asked) {
    const { name = '', value, default: usual, isRequired = false, isSecret = false, variables = {} } = input as Input
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
