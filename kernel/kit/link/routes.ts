import type { IncomingMessage } from 'node:http'
import type { FastifyBaseLogger, FastifySchemaCompiler, FastifySchemaValidationError } from 'fastify'
import type { Route } from '#contracts/wire/route'
import { bodyTooLarge, notFound } from '../../contracts/http-errors.ts'
import type { StreamRegistry } from '../../http/streams.ts'
import type { AnyCall, ServedRoute } from '../call.ts'
import type { RequestLine } from './caller.ts'

export interface LinkHostOptions {
  readonly log: FastifyBaseLogger
  readonly streams: StreamRegistry
  readonly compile: FastifySchemaCompiler<unknown>
  /** Parses JSON within the bounds of a body. Throws an AppError. */
  readonly parse: (json: Buffer) => unknown
  readonly logRequests: boolean
  /** The limit of routes that name none. */
  readonly bodyLimit: number
  /** Rejects with an AppError when the listener demands a proof of its callers, and the opening of a link has none. */
  readonly prove: (request: IncomingMessage) => Promise<unknown>
}

export type Parts = Pick<AnyCall, 'params' | 'query' | 'headers' | 'body'>

/** The routes of a listener, for its links. */
export class LinkRoutes {
  readonly #options: LinkHostOptions
  readonly #served = new Map<string, ServedRoute>()
  /** A schema is compiled when it is first needed: most routes are never asked for over a link. */
  readonly #checks = new WeakMap<object, ReturnType<FastifySchemaCompiler<unknown>>>()

  constructor(options: LinkHostOptions) {
    this.#options = options
  }

  add(one: ServedRoute): void {
    this.#served.set(`${one.route.method} ${one.route.path}`, one)
  }
  find(name: string): ServedRoute {
    const found = this.#served.get(name)
    if (!found) throw notFound({ message: 'No route answers this.' })
    return found
  }
  /** The call's parts, checked as over HTTP. Throws an AppError or what Fastify throws. */
  read({ route }: ServedRoute, line: RequestLine, bytes: Buffer): Parts {
    const { parse, bodyLimit } = this.#options
    if (bytes.length > (route.bodyLimit ?? bodyLimit)) throw bodyTooLarge()
    return {
      params: this.#check(route, 'params', route.params, line.params ?? {}),
      query: this.#check(route, 'querystring', route.query, line.query ?? {}),
      headers: this.#check(route, 'headers', route.headers, line.headers ?? {}) as AnyCall['headers'],
      body: route.bytes ? Buffer.from(bytes) : this.#check(route, 'body', route.body, route.body && parse(bytes)),
    }
  }
  #check(
    { method, path: url }: Route,
    httpPart: 'params' | 'querystring' | 'headers' | 'body',
    schema: object | undefined,
    value: unknown,
  ): unknown {
    if (!schema) return value
    let valid = this.#checks.get(schema)
    if (!valid) this.#checks.set(schema, (valid = this.#options.compile({ schema, httpPart, method, url })))
    if (valid(value) === true) return value
    const { errors } = valid as unknown as { errors?: FastifySchemaValidationError[] }
    throw Object.assign(new Error('invalid'), { validation: errors ?? [], validationContext: httpPart })
  }
}
