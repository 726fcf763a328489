/** The whole body, or undefined when it is longer than `limit` bytes. */
export async function readBody(body: AsyncIterable<Buffer>, limit: number): Promise<Buffer | undefined> {
  const parts: Buffer[] = []
  let size = 0
  for await (const part of body) {
    size += part.length
    if (size > limit) return undefined
    parts.push(part)
  }
  return Buffer.concat(parts)
}

/** The whole body as a JSON object; undefined when it is none, or longer than `limit` bytes. */
export async function readJson(
  { body }: { readonly body: AsyncIterable<Buffer> },
  limit: number,
): Promise<Record<string, unknown> | undefined> {
  const bytes = await readBody(body, limit)
  try {
    const value: unknown = JSON.parse(bytes?.toString('utf8') ?? '')
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
