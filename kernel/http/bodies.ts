import type { FastifySchemaCompiler } from 'fastify'
import fp from 'fastify-plugin'
import { Ajv, type ValidateFunction } from 'ajv'
import formats from 'ajv-formats'
import { invalidRequest } from '../contracts/http-errors.ts'

/** Request bodies are JSON within limits, and are checked against their schemas without conversion. */
export const jsonBodies = fp(
  async (app) => {
    app.setValidatorCompiler(validators())
    // Routes take no text unless they add a parser for it: any other answers 415.
    app.removeContentTypeParser(['application/json', 'text/plain'])
    app.addContentTypeParser('application/json', { parseAs: 'buffer' }, async (_request: unknown, body: Buffer) =>
      parseJson(body),
    )
  },
  { name: 'agent-orc-bodies' },
)

/**
 * Bodies are taken literally (`"60"` is not 60, unknown fields are errors); text from the URL and headers is coerced. A schema is
 * compiled by the first request that needs it: those of all routes are a sixth of a start, and most are never asked for.
 */
function validators(): FastifySchemaCompiler<unknown> {
  const options = { useDefaults: true, allowUnionTypes: true, strict: false } as const
  const literal = new Ajv(options)
  const coercing = new Ajv({ ...options, coerceTypes: 'array' })
  for (const ajv of [literal, coercing]) formats.default(ajv)
  return ({ schema, httpPart }) => {
    const ajv = httpPart === 'body' ? literal : coercing
    if (ajv.validateSchema(schema as object) !== true) throw new Error(ajv.errorsText(ajv.errors))
    let compiled: ValidateFunction | undefined
    const check: ReturnType<FastifySchemaCompiler<unknown>> = (data: unknown) => {
      compiled ??= ajv.compile(schema as object)
      const fits = compiled(data)
      check.errors = compiled.errors ?? null
      return fits
    }
    return check
  }
}

/** Deeper JSON parses but overflows the stack when it is written again. */
const maxJsonDepth = 64

/** Parses a JSON body. An empty one is `undefined`: the contract has routes whose body is optional. Throws an AppError. */
export function parseJson(body: Buffer): unknown {
  if (body.length === 0) return undefined
  // Each level takes a byte to open it and one to close it.
  if (body.length > 2 * maxJsonDepth && jsonDepth(body) > maxJsonDepth) {
    throw invalidRequest({ message: `The body nests deeper than ${maxJsonDepth} levels.` })
  }
  try {
    return JSON.parse(body.toString('utf8'), guardPrototype(body))
  } catch {
    throw invalidRequest({ message: 'The body is not valid JSON.' })
  }
}

// The reviver costs a call per key, so it is only used when the bytes mention the dangerous name at all.
function guardPrototype(body: Buffer): ((key: string, value: unknown) => unknown) | undefined {
  if (!body.includes('__proto__') && !body.includes('\\u005')) return undefined
  return (key, value) => (key === '__proto__' ? undefined : value)
}

/** Nesting depth of JSON text, counted without parsing it. */
function jsonDepth(body: Buffer): number {
  let depth = 0
  let deepest = 0
  let inString = false
  for (let i = 0; i < body.length; i++) {
    const c = body[i]
    if (inString) {
      if (c === 0x5c) i++
      else if (c === 0x22) inString = false
    } else if (c === 0x22) inString = true
    else if (c === 0x7b || c === 0x5b) deepest = Math.max(deepest, ++depth)
    else if (c === 0x7d || c === 0x5d) depth--
  }
  return deepest
}
