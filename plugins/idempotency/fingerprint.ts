import { createHash } from 'node:crypto'

/** SHA-256 of a JSON value, whatever the order in which its members were sent. */
export const fingerprint = (body: unknown): Buffer => createHash('sha256').update(canonical(body)).digest()

// Bodies nest 64 levels at most: the kernel refuses deeper ones before they are parsed.
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const members = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`
}
