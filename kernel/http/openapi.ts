import swagger from '@fastify/swagger'
import fp from 'fastify-plugin'
import { listed, problemSchema } from '../contracts/error-docs.ts'
import type { ErrorTable } from '../contracts/errors.ts'
import { vfsService } from '../contracts/auth.ts'
import { access, accessOf } from './access.ts'
import type { App } from './app.ts'

const about = `Every error is a Problem: match on \`error\`, show \`message\`, quote \`request_id\` (also the header
\`X-Request-Id\`) when you ask for help. \`Accept: application/problem+json\` gets the same as RFC 9457.
A list is a bare array of all items; with \`limit\` it is a page, with \`Link\` to its neighbours.
\`X-Total-Count\` counts them, up to 10,000. Times are ISO 8601 UTC, money is in cents.
\`x-access\` says who may call an operation; it is absent where anybody may. \`x-errors\` lists every code that this
server answers, and each response lists those of its operation.`.replaceAll('\n', ' ')

const problemOnly = { schema: { $ref: '#/components/schemas/Problem' } }
const problemContent = { 'application/json': problemOnly, 'application/problem+json': problemOnly }
/** How callers authenticate. The settings of a runner or a sidecar decide what `network` requires: nothing, a signature, a certificate. */
const securitySchemes = {
  bearer: { type: 'http' as const, scheme: 'bearer', description: 'A key: `Authorization: Bearer ao_…`.' },
  signature: {
    type: 'apiKey' as const,
    in: 'header' as const,
    name: 'x-chat-gateway-signature',
    description:
      'HMAC over the request, with `X-Chat-Gateway-Timestamp`, `-Nonce`, `-Key-ID` and `-Tenant`; the tenant is the signed one.',
  },
}
const components = {
  securitySchemes,
  schemas: { Problem: problemSchema as object },
  responses: {
    Refused: { description: 'The request was refused; `error` says why.', content: problemContent },
    Unavailable: {
      description: 'Something that the answer needs cannot be reached, or this server is stopping: try again.',
      content: problemContent,
    },
  },
  headers: {
    Total: { description: 'The number of items on all pages, up to 10,000.', schema: { type: 'integer' as const } },
    TotalExact: { description: '`false` if there are more; otherwise absent.', schema: { type: 'string' as const } },
    NextCursor: { description: 'The `cursor` of the next page, if there is one.', schema: { type: 'string' as const } },
    Link: {
      description: '`rel="next"` and `rel="prev"`; only with `limit`, and only where there is one.',
      schema: { type: 'string' as const },
    },
  },
}

const schemeOf = (who: string | undefined): keyof typeof securitySchemes | undefined => {
  if (who === undefined || who === 'public' || who === 'network') return undefined
  return who === 'service' || who === vfsService ? 'signature' : 'bearer'
}

const described: Readonly<Record<string, string>> = {
  200: 'The answer.',
  201: 'Created.',
  202: 'Accepted; it continues without the caller.',
}

interface Response {
  description?: string
  headers?: Record<string, unknown>
  content?: Readonly<Record<string, { schema?: object }>>
  $ref?: string
  'x-errors'?: unknown
}
interface Operation {
  readonly 'x-access'?: string
  readonly security?: readonly Readonly<Record<string, unknown>>[]
  readonly parameters?: readonly { readonly name: string; readonly in: string }[]
  readonly responses: Record<string, Response>
}
interface Document {
  readonly paths?: Record<string, Record<string, Operation>>
  readonly components?: object
}

interface Documented {
  readonly listener: string
  readonly errors: readonly ErrorTable[]
}

/** Documents the routes that are registered after this plugin. */
export const openapiDocument = fp(
  async (app, { listener, errors }: Documented) => {
    await app.register(swagger, openapi(listener, errors))
  },
  { name: 'agent-orc-openapi', dependencies: ['agent-orc-access'] },
)

/** Serves the document of one listener on the same listener or on another one. */
export const serveDocument = (on: App, path: string, of: App): unknown =>
  on.get(path, { ...access('public'), schema: { hide: true } }, async () => of.swagger())

/** The OpenAPI document of one listener. Errors are described once, here; a route says only what is special about it. */
const openapi = (name: string, errors: readonly ErrorTable[]) =>
  ({
    openapi: {
      openapi: '3.1.0',
      info: {
        title: `Agent Orc ${name}`,
        version: '1',
        description: about,
        license: { name: 'Apache-2.0', url: 'https://www.apache.org/licenses/LICENSE-2.0' },
      },
      components,
    },
    hideUntagged: false,
    transform: ({ schema, url, route }) => {
      const who = accessOf(route.config)
      const scheme = schemeOf(who)
      const secured = {
        ...(scheme === undefined ? {} : { security: [{ [scheme]: [] }] }),
        ...(who === undefined || who === 'public' ? {} : { 'x-access': who }),
      }
      const method = String(Array.isArray(route.method) ? route.method[0] : route.method)
      return { schema: { operationId: operationId(method, url), ...schema, ...secured } as typeof schema, url }
    },
    transformObject: (made) => {
      const document = ('openapiObject' in made ? made.openapiObject : made.swaggerObject) as Document
      const operations = Object.values(document.paths ?? {}).flatMap((path) => Object.values(path))
      operations.forEach(complete)
      const used = new Set(operations.flatMap(({ security = [] }) => security.flatMap((one) => Object.keys(one))))
      const known = errors.flatMap((table) => Object.values(table)).map(listed)
      return { ...document, 'x-errors': known, components: { ...document.components, ...schemesOf(used) } } as Document
    },
  }) satisfies Parameters<typeof swagger>[1]

/** A listener documents only the schemes that its operations use. */
const schemesOf = (used: ReadonlySet<string>) => ({
  securitySchemes: Object.fromEntries(Object.entries(securitySchemes).filter(([name]) => used.has(name))),
})

/** Adds the errors that any route may answer, and the meaning of a status that the route did not describe. */
function complete(operation: Operation): void {
  const { responses, parameters = [] } = operation
  for (const [status, response] of Object.entries(responses)) {
    const words = described[status]
    if (response.description === 'Default Response' && words) response.description = words
    // A failure with a body of its own documents that body itself.
    const own = response.content?.['application/json']?.schema ?? {}
    if (Number(status) >= 400 && !('properties' in own)) response.content = problemContent
    if ('x-errors' in own) response['x-errors'] = own['x-errors']
  }
  const paged = ['limit', 'offset'].every((name) => parameters.some((one) => one.name === name && one.in === 'query'))
  if (paged && responses['200']) {
    responses['200'].headers = {
      'X-Total-Count': { $ref: '#/components/headers/Total' },
      'X-Total-Count-Exact': { $ref: '#/components/headers/TotalExact' },
      'X-Next-Cursor': { $ref: '#/components/headers/NextCursor' },
      Link: { $ref: '#/components/headers/Link' },
    }
  }
  responses['4XX'] ??= { $ref: '#/components/responses/Refused' }
  responses['503'] ??= { $ref: '#/components/responses/Unavailable' }
}

/** The name of an operation in generated clients, e.g. `getApiRunsById`. */
const operationId = (method: string, url: string): string =>
  method.toLowerCase() +
  url
    .split('/')
    .map((part) => (part === '*' ? 'By-path' : part.startsWith(':') ? `By-${part.slice(1)}` : part))
    .flatMap((part) => part.split(/[^A-Za-z0-9]+/))
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1))
    .join('')
