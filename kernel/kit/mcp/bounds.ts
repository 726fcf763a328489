// How much a message of a server may hold. A message is parsed, and checked by the library, in one step, in which nobody else is served.
import { measureJson } from '../bodies.ts'
import { tooLarge } from './failures.ts'

/** The most values and names of one message. */
const mostParts = 50_000
/** Deeper than any legitimate value, but shallow enough that it can be serialized and kept. */
const maxDepth = 200

/** How many values and names a message has. Throws `tooLarge` when it has too many, or nests too deep. */
export function partsOf(message: Buffer): number {
  const { depth, parts } = measureJson(message)
  if (depth > maxDepth || parts > mostParts) throw new Error(tooLarge)
  return parts
}

/** The most that a list of definitions may weigh: eight hundred tools with five arguments each weigh less. */
const mostOfDefinitions = 60_000
/** Items of these may be of several kinds, and the library compares one that is of none with each of them. */
const mostOfKinds = 3_000
/** The fields of results that the library checks, and what each may weigh. What is wrong with every value of them it describes in detail. */
const checked: Readonly<Record<string, number>> = {
  tools: mostOfDefinitions,
  resources: mostOfDefinitions,
  resourceTemplates: mostOfDefinitions,
  prompts: mostOfDefinitions,
  content: mostOfKinds,
  contents: mostOfKinds,
  messages: mostOfKinds,
  completion: mostOfKinds,
  inputRequests: mostOfKinds,
}

/** Whether the library would check a result for too long. */
export const isCheckedLong = (result: Readonly<Record<string, unknown>>): boolean =>
  Object.entries(checked).some(([name, most]) => Object.hasOwn(result, name) && weightOf(result[name]) > most)

/** Text is wrong in few places, anything else in many. */
function weightOf(value: unknown): number {
  if (typeof value === 'string') return 1
  const inner: unknown[] = typeof value === 'object' && value !== null ? Object.values(value) : []
  return inner.reduce<number>((sum, one) => sum + weightOf(one), 3)
}
