/** What a model server has said of its usage so far. Cached tokens are part of the input. */
export interface Told {
  readonly input: number
  readonly output: number
  readonly cached: number
  /** Nothing more of the answer changes it. False: it is of the input, and the output is still to come. */
  readonly whole: boolean
}

/** Finds the usage in an answer, or in one event of a stream, as one wire writes it. Undefined: it says none. */
export type UsageOf = (json: Json) => Told | undefined
export type Json = Readonly<Record<string, unknown>>

/** The longest event, or whole answer, in which usage is looked for; the same for what is kept of one call. */
const mostKept = 1024 * 1024
const newline = 0x0a
const data = Buffer.from('data:')
const key = Buffer.from('"usage"')
/** What stands behind a key with an object. */
const opensObject = /^\s*:\s*\{/
/** Of an event, what is not the text of the model. */
const frameBytes = 256
const bytesPerToken = 4

/**
 * Reads the usage from an answer while it passes. Of a stream only the events are parsed that have an object `usage` somewhere:
 * quotes in texts are escaped, so no text of a model is taken for one. What is longer than a mebibyte is not kept, and not read.
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
    for (let end = chunk.indexOf(newline); end >= 0; end = chunk.indexOf(newline, start)) {
      this.#lineEnds(chunk.subarray(start, end))
      start = end + 1
    }
    if (start < chunk.length) this.#keep(chunk.subarray(start))
  }

  #keep(part: Buffer): void {
    this.#keptBytes += part.length
    if (this.#keptBytes > mostKept) this.#kept = []
    // A part of a chunk would hold all of it in memory.
    else this.#kept.push(this.#streams ? Buffer.from(part) : part)
  }
  #lineEnds(part: Buffer): void {
    const length = this.#keptBytes + part.length
    const line = this.#keptBytes === 0 ? part : Buffer.concat([...this.#kept, part])
    this.#kept = []
    this.#keptBytes = 0
    const isEvent = length > mostKept || line.subarray(0, data.length).equals(data)
    if (!isEvent) return
    this.#tokens += 1 + Math.floor(Math.max(0, length - frameBytes) / bytesPerToken)
    if (length <= mostKept && tellsUsage(line)) this.#parse(line.subarray(data.length))
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

function tellsUsage(line: Buffer): boolean {
  for (let at = line.indexOf(key); at >= 0; at = line.indexOf(key, at + key.length)) {
    const behind = at + key.length
    if (opensObject.test(line.toString('latin1', behind, behind + 16))) return true
  }
  return false
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
