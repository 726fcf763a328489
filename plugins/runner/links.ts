import type { AppError } from '#kernel'
import type { ObjectStore } from '#contracts/object-store'
import { type Attachment, hasLinks } from '#contracts/prompt'
import type { ExecuteRun } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import { type Executors, linkOf, type LiveSession } from './sessions.ts'

/** Throws `links_unread` unless every linked attachment is in this runner's object store. */
export async function requireLinks(
  objects: ObjectStore | undefined,
  tenantId: string,
  attachments: readonly Attachment[],
): Promise<void> {
  for (const { link } of attachments) {
    if (!link) continue
    if (!objects) throw runnerErrors.linksUnread()
    const found = await objects.open(tenantId, link.key).catch((cause: unknown) => {
      throw runnerErrors.linksUnread({ cause })
    })
    await found?.close()
    if (found?.info.bytes !== link.bytes) throw runnerErrors.linksUnread()
  }
}

/** The order, with full attachments if its sidecar cannot read links, as those of earlier releases cannot. */
export async function readableBy(
  order: ExecuteRun,
  session: LiveSession,
  { executors, objects }: { readonly executors: Executors; readonly objects: ObjectStore | undefined },
): Promise<ExecuteRun> {
  if (!objects || !hasLinks(order)) return order
  // A sidecar that cannot be reached is still asked to take the run for a while, so its health decides nothing here.
  const health = await linkOf(executors, session)
    .health()
    .catch(() => undefined)
  if (!health || health.readsLinks === true) return order
  const { contentOf } = await import('#kit/linked-files')
  const attachments: Attachment[] = []
  for (const { link, ...rest } of order.attachments ?? []) {
    const found = link && (await objects.open(session.tenantId, link.key))
    const bytes = found && (await contentOf(await found.read(), link))
    if (link && !bytes) throw runnerErrors.linksUnread()
    attachments.push(bytes ? { ...rest, data: bytes.toString('base64') } : rest)
  }
  return { ...order, attachments }
}

/** The answer to a conductor that must send the attachments themselves. */
export const readsNoLinks = ({ code }: AppError): boolean => code === runnerErrors.linksUnread.row.code
