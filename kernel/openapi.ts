import type swagger from '@fastify/swagger'
import { accessOf } from './access.ts'

// What every error body looks like; see errors.ts.
const problem = {
  type: 'object',
  required: ['error', 'request_id'],
  properties: {
    error: { type: 'string', description: 'Stable code to match on.' },
    message: { type: 'string', description: 'A sentence for people.' },
    request_id: { type: 'string', description: 'Names this request in the logs.' },
    issues: {
      type: 'array',
      description: 'With `invalid_request`: what is wrong, and where.',
      items: { type: 'object', properties: { path: { type: 'string' }, message: { type: 'string' } } },
    },
  },
  additionalProperties: true,
}

const answer = (description: string) => ({
  description,
  content: { 'application/json': { schema: { $ref: '#/components/schemas/Problem' } } },
})
const components = {
  securitySchemes: { bearer: { type: 'http' as const, scheme: 'bearer' } },
  schemas: { Problem: problem as object },
  responses: {
    Refused: answer('The request was refused; `error` says why.'),
    Unavailable: answer('Something that the answer needs is away, or this server is stopping: try again.'),
  },
}

const described: Readonly<Record<string, string>> = {
  200: 'The answer.',
  201: 'Created.',
  202: 'Accepted: it goes on without the caller.',
  204: 'Done.',
}

interface Operation {
  readonly 'x-access'?: string
  readonly responses: Record<string, { description?: string; $ref?: string }>
}
interface Document {
  readonly paths?: Record<string, Record<string, Operation>>
}

/** The OpenAPI document of one listener. Errors are described once, here; a route says only what is special about it. */
export const openapi = (name: string) =>
  ({
    openapi: { openapi: '3.1.0', info: { title: `Agent Orc ${name}`, version: '1' }, components },
    hideUntagged: false,
    transform: ({ schema, url, route }) => {
      const who = accessOf(route.config)
      const secured = who === undefined || who === 'public' ? {} : { security: [{ bearer: [] }], 'x-access': who }
      const method = String(Array.isArray(route.method) ? route.method[0] : route.method)
      return { schema: { operationId: operationId(method, url), ...schema, ...secured } as typeof schema, url }
    },
    transformObject: (made) => {
      const document = ('openapiObject' in made ? made.openapiObject : made.swaggerObject) as Document
      for (const operations of Object.values(document.paths ?? {})) Object.values(operations).forEach(complete)
      return document
    },
  }) satisfies Parameters<typeof swagger>[1]

/** Names what any route of a guarded scope may answer, and what a status means where the route did not say. */
function complete(operation: Operation): void {
  const { responses } = operation
  for (const [status, response] of Object.entries(responses)) {
    const words = described[status]
    if (response.description === 'Default Response' && words) response.description = words
  }
  if (operation['x-access'] === undefined) return
  responses['4XX'] ??= { $ref: '#/components/responses/Refused' }
  responses['503'] ??= { $ref: '#/components/responses/Unavailable' }
}

/** `getApiRunsById`: what generated clients call it. */
const operationId = (method: string, url: string): string =>
  method.toLowerCase() +
  url
    .split('/')
    .map((part) => (part.startsWith(':') ? `By-${part.slice(1)}` : part))
    .flatMap((part) => part.split(/[^A-Za-z0-9]+/))
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1))
    .join('')
