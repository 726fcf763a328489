import type { FastifyInstance } from 'fastify'
import type { Method } from './route-table.ts'
import type { Schema } from './schema-values.ts'

export interface Parameter {
  readonly name: string
  readonly in: 'path' | 'query' | 'header'
  readonly required?: boolean
  readonly schema?: Schema
}

/** One operation of a listener's OpenAPI document. */
export interface Operation {
  readonly method: Method
  readonly path: string
  readonly access: string | undefined
  readonly parameters: readonly Parameter[]
  /** Schema of its JSON body, if it takes one. */
  readonly body: Schema | undefined
  readonly bodyRequired: boolean
  /** By status, as documented: `200`, `4XX`. */
  readonly responses: Readonly<
    Record<
      string,
      {
        readonly content?: Readonly<Record<string, { schema?: Schema }>>
        readonly headers?: Readonly<Record<string, object>>
      }
    >
  >
}

interface Raw {
  readonly 'x-access'?: string
  readonly parameters?: readonly Parameter[]
  readonly requestBody?: {
    readonly required?: boolean
    readonly content: Readonly<Record<string, { schema?: Schema }>>
  }
  readonly responses: Operation['responses']
}

/** `headers` are for a listener that shows its document only to those who prove who they are. */
export async function operationsOf(
  app: FastifyInstance,
  headers: Readonly<Record<string, string>> = {},
): Promise<Operation[]> {
  const document = (await app.inject({ url: '/openapi.json', headers })).json<{
    paths: Record<string, Record<string, Raw>>
    components?: { responses?: Record<string, Operation['responses'][string]> }
  }>()
  const resolve = (response: Operation['responses'][string] & { $ref?: string }): Operation['responses'][string] =>
    response.$ref === undefined ? response : document.components!.responses![response.$ref.split('/').at(-1)!]!
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, raw]) => ({
      method: method.toUpperCase() as Method,
      path,
      access: raw['x-access'],
      parameters: raw.parameters ?? [],
      body: raw.requestBody?.content['application/json']?.schema,
      bodyRequired: raw.requestBody?.required ?? false,
      responses: Object.fromEntries(Object.entries(raw.responses).map(([status, one]) => [status, resolve(one)])),
    })),
  )
}
