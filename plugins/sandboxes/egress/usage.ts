/** The usage in tokens that a model server has reported so far. `input` includes cached tokens. */
export interface Told {
  readonly input: number
  readonly output: number
  readonly cached: number
  /** True when the usage is final. False when only the input is known yet. */
  readonly whole: boolean
}

/** Finds the usage in an answer, or in one event of a stream, of one API. Undefined when there is none. */
export type UsageOf = (json: Json) => Told | undefined
export type Json = Readonly<Record<string, unknown>>

/** The largest event or answer that is searched for usage, in bytes. No more is kept for one call. */
const mostKept = 1024 * 1024
const newline = 0x0a
/** The length of `data:`, with which an event begins. */
const prefix = 5
const key = Buffer.from('"usage"')
/** The size of an event without the model's text, in bytes. */
const frameBytes = 256
const bytesPerToken = 4

/**
 * Reads the usage from an answer while it streams; parts above one mebibyte are neither kept nor read. In an event stream, only events with an object
 * `usage` are parsed. Quotes in texts are escaped, so the text of a model cannot look like such an object.
 */
export class UsageReader {
  readonly #usageOf: UsageOf
  readonly #streams: boolean
  #told: Told | undefined
  /** The bytes of the incomplete event, or of the answer so far. */
  #kept: Buffer[] = []
  #keptBytes = 0
  #tokens = 0

  /** `streams`: the answer is a stream of events. */
  constructor(usageOf: UsageOf, streams: boolean) {
    this.#usageOf = usageOf
    this.#streams = streams
  }

  get told(): Told | undefined {
    return this.#told
  }
  /** An estimate of the tokens received, from their bytes. */
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

  /** Must be called when the answer is over. One that is no stream is parsed only then, because it tells nothing before. */
  end(): void {
    if (this.#streams || this.#keptBytes > mostKept) return
    this.#parse(Buffer.concat(this.#kept))
    this.#kept = []
  }

  #keep(part: Buffer): void {
    this.#keptBytes += part.length
    if (this.#keptBytes > mostKept) this.#kept = []
    // A slice of a chunk would keep the whole chunk in memory, so it is copied.
    else this.#kept.push(this.#streams ? Buffer.from(part) : part)
  }
  /** Completes a line that came in several chunks. */
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
    // A server that reports zero has not counted.
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

/** Whether a key `usage` has an object as its value before `end`. `mark` is the first such key. In most events of a stream the value is null. */
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

/** Usage of chat completions, completions and embeddings, and of the Responses API, whose streams report it in the final response. */
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

/**
 * Usage of Messages. A stream reports the input at its beginning and the output at its end. This API counts cached tokens outside of the input. Where a
 * call samples more than once, as for a compaction, `iterations` lists each; the usage of some of them is nowhere else.
 */
export const anthropicUsage: UsageOf = ({ usage, message }) => {
  const begins = objectOf(message)
  const said = objectOf(begins ? begins['usage'] : usage)
  if (!said) return undefined
  const listed = Array.isArray(said['iterations']) ? said['iterations'] : []
  const each = listed.map((one: unknown) => sampled(objectOf(one) ?? {}))
  const whole = sampled(said)
  const most = (of: keyof typeof whole): number =>
    Math.max(
      whole[of],
      each.reduce((sum, one) => sum + one[of], 0),
    )
  return { input: most('input'), output: most('output'), cached: most('cached'), whole: begins === undefined }
}

function sampled(said: Json) {
  const cached = count(said['cache_read_input_tokens'])
  return {
    input: count(said['input_tokens']) + cached + count(said['cache_creation_input_tokens']),
    output: count(said['output_tokens']),
    cached,
  }
}
