/** The usage that a model server has reported so far. Cached tokens are part of the input. */
export interface Told {
  readonly input: number
  readonly output: number
  readonly cached: number
  /** True when it is final. False: it covers the input, and the output is still to come. */
  readonly whole: boolean
}

/** Finds the usage in an answer, or in one event of a stream, in the form of one API. Undefined: there is none. */
export type UsageOf = (json: Json) => Told | undefined
export type Json = Readonly<Record<string, unknown>>

/** The longest event, or whole answer, in which usage is looked for; the same for what is kept of one call. */
const mostKept = 1024 * 1024
const newline = 0x0a
/** Of `data:`, with which an event begins. */
const prefix = 5
const key = Buffer.from('"usage"')
/** Of an event, what is not the text of the model. */
const frameBytes = 256
const bytesPerToken = 4

/**
 * Reads the usage from an answer while it passes. Of a stream only the events are parsed that have an object `usage` somewhere:
 * quotes in texts are escaped, so no text of a model is mistaken for one. Longer parts than a mebibyte are neither kept nor read.
 */
export class UsageReader {
  readonly #usageOf: UsageOf
  readonly #streams: boolean
  #told: Told | undefined
  /** Of the event, or of the answer, that is not whole yet. */
  #kept: Buffer[] = []
  #keptBytes = 0
  #tokens = 0

  /** `streams`: the answer is a stream of events. */
  constructor(usageOf: UsageOf, streams: boolean) {
    this.#usageOf = usageOf
    this.#streams = streams
  }

  get told(): Told | undefined {
    if (!this.#streams && this.#keptBytes <= mostKept) this.#parse(Buffer.concat(this.#kept))
    return this.#told
  }
  /** About how many tokens came, by their bytes. */
  get tokens(): number {
    return this.#streams ? this.#tokens : Math.ceil(this.#keptBytes / bytesPerToken)
  }

  read(chunk: Buffer): void {
    if (!this.#streams) return this.#keep(chunk)
    let start = 0
    let mark = chunk.indexOf(key)
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      if (this.#keptBytes > 0) this.#keptEnds(chunk.subarray(start, end))
      else if (isEvent(chunk, start)) {
        this.#count(end - start)
        if (mark >= start && mark < end && tellsUsage(chunk, mark, end))
          this.#parse(chunk.subarray(start + prefix, end))
      }
      start = end + 1
      if (mark >= 0 && mark < start) mark = chunk.indexOf(key, start)
    }
    if (start < chunk.length) this.#keep(chunk.subarray(start))
  }

  #keep(part: Buffer): void {
    this.#keptBytes += part.length
    if (this.#keptBytes > mostKept) this.#kept = []
    // A part of a chunk would hold all of it in memory.
    else this.#kept.push(this.#streams ? Buffer.from(part) : part)
  }
  /** The rest of a line that came in several chunks. */
  #keptEnds(rest: Buffer): void {
    const length = this.#keptBytes + rest.length
    const line = length > mostKept ? undefined : Buffer.concat([...this.#kept, rest])
    this.#kept = []
    this.#keptBytes = 0
    if (line && !isEvent(line, 0)) return
    this.#count(length)
    const mark = line ? line.indexOf(key) : -1
    if (line && mark >= 0 && tellsUsage(line, mark, length)) this.#parse(line.subarray(prefix))
  }
  #count(bytes: number): void {
    this.#tokens += 1 + Math.floor(Math.max(0, bytes - frameBytes) / bytesPerToken)
  }
  #parse(bytes: Buffer): void {
    const json = parsed(bytes)
    const told = json && this.#usageOf(json)
    // A server that says zero did not count.
    if (!told || told.input + told.output === 0) return
    const { input = 0, output = 0, cached = 0, whole = false } = this.#told ?? {}
    this.#told = {
      input: Math.max(input, told.input),
      output: Math.max(output, told.output),
      cached: Math.max(cached, told.cached),
      whole: whole || told.whole,
    }
  }
}

/** Whether the line begins with `data:`. */
const isEvent = (chunk: Buffer, start: number): boolean =>
  chunk[start] === 0x64 && chunk[start + 1] === 0x61 && chunk[start + 4] === 0x3a

/** Whether a key `usage`, the first of which is at `mark`, has an object before `end`. Most events of a stream say that it is null. */
function tellsUsage(line: Buffer, mark: number, end: number): boolean {
  for (let at = mark; at >= 0 && at < end; at = line.indexOf(key, at + key.length)) {
    const colonAt = skipBlank(line, at + key.length)
    if (line[colonAt] === 0x3a && line[skipBlank(line, colonAt + 1)] === 0x7b) return true
  }
  return false
}
function skipBlank(line: Buffer, from: number): number {
  let at = from
  while (line[at] === 0x20 || line[at] === 0x09) at++
  return at
}

function parsed(bytes: Buffer): Json | undefined {
  try {
    return objectOf(JSON.parse(bytes.toString('utf8')))
  } catch {
    return undefined
  }
}

const objectOf = (value: unknown): Json | undefined =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined
const count = (value: unknown): number =>
  typeof value === 'number' && Number.isFinite(value) ? Math.max(0, Math.trunc(value)) : 0

/** Chat completions, completions and embeddings; the Responses API, whose streams have it in the response that ends them. */
export const openaiUsage: UsageOf = ({ usage, response }) => {
  const said = objectOf(usage) ?? objectOf(objectOf(response)?.['usage'])
  if (!said) return undefined
  const details = objectOf(said['prompt_tokens_details']) ?? objectOf(said['input_tokens_details'])
  return {
    input: count(said['prompt_tokens'] ?? said['input_tokens']),
    output: count(said['completion_tokens'] ?? said['output_tokens']),
    cached: count(details?.['cached_tokens']),
    whole: true,
  }
}

/** Messages: a stream says the input when it begins, and the output when it ends. What was cached is beside the input there. */
export const anthropicUsage: UsageOf = ({ usage, message }) => {
  const begins = objectOf(message)
  const said = objectOf(begins ? begins['usage'] : usage)
  if (!said) return undefined
  const cached = count(said['cache_read_input_tokens'])
  return {
    input: count(said['input_tokens']) + cached + count(said['cache_creation_input_tokens']),
    output: count(said['output_tokens']),
    cached,
    whole: begins === undefined,
  }
}
