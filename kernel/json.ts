import { AppError } from './errors.ts'

/** Deeper JSON parses but overflows the stack when it is written again. */
const maxJsonDepth = 64

/** Parses a JSON body. An empty one is `undefined`: the contract has routes whose body is optional. */
export function parseJson(body: Buffer): unknown {
  if (body.length === 0) return undefined
  const depth = jsonDepth(body)
  if (depth > maxJsonDepth) {
    throw new AppError('invalid_request', 400, { message: `The body nests deeper than ${maxJsonDepth} levels.` })
  }
  try {
    return JSON.parse(body.toString('utf8'), guardPrototype(body))
  } catch {
    throw new AppError('invalid_request', 400, { message: 'The body is not valid JSON.' })
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
