// RFC 9110 token68: nothing that a quote, a comma or a control character could end early.
const bearer = /^Bearer +([A-Za-z0-9._~+/-]+=*)$/i

/**
 * The bearer token of a request, from its raw headers (name, value, name, value…), because Node silently keeps the first of
 * two Authorization headers and another hop may go by the second. Undefined unless there is exactly one, and well formed.
 */
export function bearerOf(rawHeaders: readonly string[]): string | undefined {
  let value: string | undefined
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]!.toLowerCase() !== 'authorization') continue
    if (value !== undefined) return undefined
    value = rawHeaders[i + 1]
  }
  return value === undefined ? undefined : bearer.exec(value)?.[1]
}
