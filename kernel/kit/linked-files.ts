import { createHash } from 'node:crypto'
import { linkErrors, type ObjectLink } from '#contracts/linked-objects'
import type { ModelFetch } from '#contracts/model'
import type { RunEnvelope } from '#contracts/run-envelope'
import { maxAttachmentBytes } from '#contracts/prompt'
import { sidecarErrors } from '#contracts/sidecar-errors'
import { isAppError } from '../contracts/errors.ts'
import { maxLineBytes } from './lines.ts'
import { createModelConnections } from './models.ts'

/** Where a run's linked contents are: beside the tools of its session, with the same token. */
type LinkedPlace = Pick<RunEnvelope, 'sessionMcpUrl' | 'sessionMcpToken'>

/** Reads linked contents from a run's runner, on separate connections. */
export class LinkedFiles {
  readonly #connections = createModelConnections()

  /**
   * The whole content of a link. Undefined: it is no longer kept. Rejects with `attachment_unread` when the content cannot be read, or differs from
   * the link.
   */
  async read(place: LinkedPlace, link: ObjectLink, signal: AbortSignal): Promise<Buffer | undefined> {
    try {
      return await read(this.#connections.fetch, place, link, signal)
    } catch (cause) {
      signal.throwIfAborted()
      throw isAppError(cause) ? cause : sidecarErrors.attachmentUnread({ cause })
    }
  }

  /** The envelope with the contents of its attachments instead of links. Also rejects with `attachment_gone`. */
  async bring(envelope: RunEnvelope, signal: AbortSignal): Promise<RunEnvelope> {
    const attachments: NonNullable<RunEnvelope['attachments']> = []
    for (const { link, ...rest } of envelope.attachments ?? []) {
      const bytes = link && (await this.read(envelope, link, signal))
      if (link && !bytes) throw linkErrors.attachmentGone()
      attachments.push(bytes ? { ...rest, data: bytes.toString('base64') } : rest)
    }
    return { ...envelope, attachments }
  }

  close(): Promise<void> {
    return this.#connections.close()
  }
}

async function read(fetch: ModelFetch, place: LinkedPlace, link: ObjectLink, signal: AbortSignal) {
  const { sessionMcpUrl, sessionMcpToken } = place
  if (sessionMcpUrl === undefined) throw new Error('the envelope names no runner')
  const headers = sessionMcpToken === undefined ? {} : { authorization: `Bearer ${sessionMcpToken}` }
  const answer = await fetch(new URL(`files/${link.key}`, sessionMcpUrl).href, { headers, signal })
  if (answer.status !== 200) {
    await answer.body?.cancel()
    if (answer.status === 404) return undefined
    throw new Error(`the runner answered ${answer.status}`)
  }
  const content = await contentOf(answer.body!, link)
  if (!content) throw new Error('the content does not match its link')
  return content
}

/** All bytes of a linked object. Undefined when they do not match its link. */
export async function contentOf(
  body: AsyncIterable<Uint8Array>,
  link: Pick<ObjectLink, 'sha256' | 'bytes'>,
): Promise<Buffer | undefined> {
  if (link.bytes > mostBytes) return undefined
  const content = Buffer.allocUnsafe(link.bytes)
  const sha256 = createHash('sha256')
  let bytes = 0
  for await (const part of body) {
    if (bytes + part.length > link.bytes) return undefined
    sha256.update(part)
    // Copy each part into place at once, because joining all parts at the end would block the event loop.
    content.set(part, bytes)
    bytes += part.length
  }
  return bytes === link.bytes && sha256.digest('hex') === link.sha256 ? content : undefined
}

/** Linked content is an attachment, or was part of one event line. */
const mostBytes = Math.max(maxAttachmentBytes, maxLineBytes)
