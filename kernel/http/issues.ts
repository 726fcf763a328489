import type { FastifySchemaValidationError } from 'fastify'

export interface Issue {
  readonly path: string
  readonly message: string
}

/** The sender's own text, of which an answer repeats only as much as helps. */
const longestName = 100

/** What is wrong with a request and where, for whoever wrote it: Ajv's own words tell about the schema. */
export function issuesOf(errors: readonly FastifySchemaValidationError[], context = 'body'): Issue[] {
  // What the branches of a union found comes before the union's own error, and says little alone.
  const unions = errors.filter(({ keyword }) => keyword === 'anyOf')
  const inside = (one: FastifySchemaValidationError, union: FastifySchemaValidationError): boolean =>
    one !== union && one.schemaPath.startsWith(`${union.schemaPath}/`)
  return errors
    .filter((one) => !unions.some((union) => inside(one, union)))
    .map((one) => {
      if (one.keyword !== 'anyOf') return issueOf(one, context)
      const branches = errors.filter((other) => inside(other, one) && other.keyword !== 'anyOf')
      // A branch that looked deeper into the value was the one that was meant.
      const deeper = branches.find(({ instancePath }) => instancePath.length > one.instancePath.length)
      return deeper ? issueOf(deeper, context) : { path: context + one.instancePath, message: either(branches) }
    })
}

function issueOf(error: FastifySchemaValidationError, context: string): Issue {
  const { keyword, params, message = 'is invalid' } = error
  const at = (name: unknown): string =>
    `${context}${error.instancePath}${typeof name === 'string' ? `/${name.slice(0, longestName)}` : ''}`
  switch (keyword) {
    case 'required':
      return { path: at(params['missingProperty']), message: 'is required' }
    case 'additionalProperties':
      return { path: at(params['additionalProperty']), message: 'is not a field of this request' }
    case 'const':
    case 'enum':
      return { path: at(undefined), message: either([error]) }
    default:
      return { path: at(undefined), message }
  }
}

/** `must be one of: reject, enqueue`, `must be string or must be null`. */
function either(branches: readonly FastifySchemaValidationError[]): string {
  const values = branches.flatMap(({ keyword, params }): unknown[] =>
    keyword === 'const' ? [params['allowedValue']] : keyword === 'enum' ? (params['allowedValues'] as unknown[]) : [],
  )
  const others = branches.filter(({ keyword }) => keyword !== 'const' && keyword !== 'enum')
  const words = [
    ...(values.length > 0 ? [`must be ${values.length > 1 ? 'one of: ' : ''}${values.join(', ')}`] : []),
    ...new Set(others.map(({ message = 'is invalid' }) => message)),
  ]
  return words.join(' or ') || 'is invalid'
}
