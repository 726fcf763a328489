import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import { Ajv, type ValidateFunction } from 'ajv'
import formats from 'ajv-formats'

export interface Validators {
  /** Throws when the schema is none. */
  check(schema: object): void
  /** Compiles the schema of a body or of another part of a request, once. */
  compile(schema: object, httpPart: string | undefined): ValidateFunction
}
type Serializers = ReturnType<typeof SerializerSelector>

/**
 * What checks requests and writes answers. It compiles a schema for the first request or answer that needs it, because compiling all of them would
 * be half of a start and most are never used. Schemas with the same text are compiled once for all listeners that share this, and for all kernels:
 * in a process of tests, which boots hundreds, compiling was 40 % of the processor time.
 */
export interface Compilers {
  readonly validators: Validators
  readonly serializers: Serializers
}

export const createCompilers = (): Compilers => ({ validators: createValidators(), serializers: createSerializers() })

/** Bodies are taken literally (`"60"` is not 60, unknown fields are errors); text from the URL and headers is coerced. */
function createValidators(): Validators {
  const options = { useDefaults: true, allowUnionTypes: true, strict: false } as const
  const literal = once(new Ajv(options))
  const coercing = once(new Ajv({ ...options, coerceTypes: 'array' }))
  const { ajv } = literal
  const sound = new WeakSet<object>()
  return {
    check(schema) {
      if (sound.has(schema)) return
      if (ajv.validateSchema(schema) !== true) throw new Error(ajv.errorsText(ajv.errors))
      sound.add(schema)
    },
    compile: (schema, httpPart) => (httpPart === 'body' ? literal : coercing).compile(schema),
  }
}

/** Validators are themselves compiled, so each way of checking has one `Ajv`. */
function once(ajv: Ajv) {
  formats.default(ajv)
  return { ajv, compile: byText((schema: object) => ajv.compile(schema)) }
}

function createSerializers(): Serializers {
  const shared = byText((schema: object) => SerializerSelector()({}, {})({ schema } as never))
  return (schemas, options) => {
    // A schema that refers to those that a plugin has added to its listener means something else in another one.
    const isAlone = Object.keys((schemas as object | undefined) ?? {}).length === 0
    const compile = SerializerSelector()(schemas, options)
    return (route) => {
      let written: ReturnType<typeof compile> | undefined
      return (data) => (written ??= isAlone ? shared(route.schema as object) : compile(route))(data)
    }
  }
}

function byText<T>(compile: (schema: object) => T): (schema: object) => T {
  const made = new Map<string, T>()
  return (schema) => {
    const text = JSON.stringify(schema)
    const known = made.get(text)
    if (known !== undefined) return known
    const compiled = compile(schema)
    made.set(text, compiled)
    return compiled
  }
}
