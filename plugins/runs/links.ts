import type { FastifyBaseLogger } from 'fastify'
import { linesOf } from '#kernel'
import { type Content, linkErrors, type LinkedObjects, type ObjectLink } from '#contracts/linked-objects'
import { type Attachment, decodeBase64 } from '#contracts/prompt'
import type { Replay } from '#contracts/replay'
import { runErrors } from '#contracts/run-errors'
import { type LogChunk, parseLine, peekType } from '#contracts/run-event'
import { beginOf } from '#contracts/runs'

/** How many characters an event keeps of a text that was moved to the object store. */
const previewChars = 2_048
const goneNote = '[The rest of this result is not kept any more.]'
const newline = Buffer.from('\n')

type RunKey = { readonly tenantId: string; readonly runId: string }

/** Moves a run's large contents to the object store before they are passed on, and brings them back for callers that need them. */
export class RunLinks {
  readonly #objects: LinkedObjects | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>

  constructor(objects: LinkedObjects | undefined, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#objects = objects
    this.#log = log
  }

  /** The attachments of a task, in which links replace large contents and uploads. */
  async take({ tenantId, runId }: RunKey, attachments: readonly Attachment[]): Promise<Attachment[]> {
    const objects = this.#objects
    const contents: Content[] = []
    const carried: (() => Attachment)[] = []
    let kept: ObjectLink[] = []
    for (const [i, attachment] of attachments.entries()) {
      const { data, upload, ...rest } = attachment
      if (upload !== undefined) {
        if (!objects) throw linkErrors.uploadsUnavailable()
        const link = await objects.use(tenantId, runId, upload)
        carried.push(() => ({ ...rest, link }))
        continue
      }
      const bytes = decodeBase64(data ?? '')
      if (!bytes) throw runErrors.invalidAttachment({ message: `body/attachments/${i}/data is not base64.` })
      if (!objects || bytes.length <= objects.above) carried.push(() => attachment)
      else {
        const place = contents.push({ bytes, contentType: attachment.mediaType }) - 1
        carried.push(() => ({ ...rest, link: kept[place]! }))
      }
    }
    if (contents.length > 0) kept = await objects!.keep(tenantId, runId, contents)
    return carried.map((one) => one())
  }

  /** Releases the links of a run that was not begun. What cannot be released now is removed by a later sweep. */
  release({ tenantId, runId }: RunKey): void {
    this.#objects?.release(tenantId, runId).catch((err: unknown) => {
      this.#log.warn({ err, runId }, 'the linked objects of a run that did not begin are removed later')
    })
  }

  /** The same attachments with their contents, for a runner that cannot read links. Rejects with `attachment_gone`. */
  async inline({ tenantId, runId }: RunKey, attachments: readonly Attachment[]): Promise<Attachment[]> {
    const whole: Attachment[] = []
    for (const { link, ...rest } of attachments) {
      const bytes = link && (await this.#objects?.read(tenantId, runId, link))
      if (link && !bytes) throw linkErrors.attachmentGone()
      whole.push(bytes ? { ...rest, data: bytes.toString('base64') } : rest)
    }
    return whole
  }

  /** Whether a chunk may hold a tool result that has to be moved to the object store. */
  wants(chunk: LogChunk): boolean {
    return this.#objects !== undefined && chunk.lines.length > this.#objects.above
  }

  /**
   * The chunk, in which large results are cut to a preview with a link to the whole. If the object store refuses a result, the chunk stays
   * unchanged.
   */
  async shorten(run: RunKey, chunk: LogChunk): Promise<LogChunk> {
    const lines: Buffer[] = []
    let changed = false
    for (const line of linesOf(chunk.lines)) {
      const shorter = line.length > this.#objects!.above && peekType(line) === 'tool_result'
      const short = shorter ? await this.#shortened(run, line) : undefined
      changed ||= short !== undefined
      lines.push(short ?? line, newline)
    }
    return changed ? { ...chunk, lines: Buffer.concat(lines) } : chunk
  }

  /** The replay with tool results as the model received them. A result that is gone stays as its event has it, shortened. */
  async whole({ tenantId, runId }: RunKey, replay: Replay): Promise<Replay> {
    if (!replay.some((item) => item.type === 'tool_result' && item.link)) return replay
    const items: Replay = []
    for (const item of replay) {
      if (item.type !== 'tool_result' || !item.link) {
        items.push(item)
        continue
      }
      const { link, truncated: _, ...rest } = item
      const bytes = await this.#objects?.read(tenantId, runId, link)
      items.push({ ...rest, content: bytes?.toString('utf8') ?? `${rest.content}\n${goneNote}` })
    }
    return items
  }

  async #shortened({ tenantId, runId }: RunKey, line: Buffer): Promise<Buffer | undefined> {
    const event = parseLine(line)
    if (typeof event?.['content'] !== 'string') return undefined
    const bytes = Buffer.from(event['content'])
    if (bytes.length <= this.#objects!.above) return undefined
    try {
      const [link] = await this.#objects!.keep(tenantId, runId, [{ bytes, contentType: 'text/plain; charset=utf-8' }])
      const content = beginOf(event['content'], previewChars)
      return Buffer.from(JSON.stringify({ ...event, content, truncated: true, link }))
    } catch (err) {
      this.#log.warn({ err, runId }, 'a large result stays in the log: the object store did not accept it')
      return undefined
    }
  }
}
