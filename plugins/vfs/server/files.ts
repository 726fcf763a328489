import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { httpErrors, invalidField, isAppError, notFound } from '#kernel'
import { mostObjectsAtOnce, type ObjectBackend, objectErrors, type WriteCondition } from '#contracts/object-store'
import {
  isNewVfsPath,
  isVfsFolder,
  isVfsPath,
  mostEntriesAtOnce,
  type VfsAccess,
  type VfsEntry,
  vfsErrors,
  type VfsList,
  type VfsListQuery,
  type VfsMatches,
  type VfsMount,
  type VfsSearchQuery,
  type VfsView,
} from '#contracts/vfs'
import { Shares } from '../shares.ts'
import type { Arriving } from './arriving.ts'
import type { Audit } from './audit.ts'
import type { Metrics } from './metrics.ts'
import type { Mounts } from './mounts.ts'
import { Overlay } from './overlay.ts'
import { anyBelow, ObjectTree, type OpenFile, placeOf, search, type Tree } from './tree.ts'
import type { Session, Sessions } from './sessions.ts'
import { countedTree } from './usage.ts'

interface NewFile {
  readonly body: AsyncIterable<Uint8Array>
  /** The announced length of the body; undefined if the sender did not announce it. */
  readonly bytes: number | undefined
  readonly contentType: string
  readonly when: WriteCondition
}

interface Options {
  readonly mounts: Mounts
  readonly sessions: Sessions
  readonly audit: Audit
  readonly metrics: Metrics
  /** The store of scratch spaces and copy-on-write layers. */
  readonly space: ObjectBackend
  readonly scratch: string
  readonly fileBytes: number
  readonly arriving: Arriving
  readonly requestsAtOnce: number
}

interface Mounted {
  readonly tree: Tree
  readonly readOnly: boolean
}

/** All operations on files: selects the view, checks access, and records the operation. Rejects with AppErrors. */
export class Files {
  readonly #options: Options
  readonly #shares: Shares

  constructor(options: Options) {
    this.#options = options
    this.#shares = new Shares(options.requestsAtOnce)
  }

  async mounts(view: VfsView): Promise<VfsMount[]> {
    const session = await this.#session(view)
    const mounts = await this.#options.mounts.list(view.tenantId, session !== undefined)
    return mounts.filter(({ name }) => !session || this.#allows(session, name))
  }

  list(view: VfsView, mount: string, folder: string, query: VfsListQuery): Promise<VfsList> {
    return this.#noted(view, { operation: 'list', mount, path: folder }, async () => {
      if (!isVfsFolder(folder)) throw vfsErrors.invalidPath()
      const { tree } = await this.#mounted(view, mount)
      const { cursor, limit = 200, recursive = false } = query
      const after = cursor === undefined ? '' : placeIn(cursor)
      const entries: VfsEntry[] = []
      for await (const entry of tree.walk(folder, { after, recursive, limit })) {
        const last = entries.at(-1)
        if (entries.length === limit && last)
          return { entries, cursor: Buffer.from(placeOf(last)).toString('base64url') }
        entries.push(entry)
      }
      return { entries }
    })
  }

  /**
   * Opens a file. The caller must read or close it, and holds one of the tenant's concurrent requests until then. `bytesOf` returns how many bytes
   * will be read, for the audit.
   */
  async open(view: VfsView, mount: string, path: string, bytesOf?: (file: OpenFile) => number): Promise<OpenFile> {
    const open = async (): Promise<OpenFile> => {
      check(path)
      const { tree } = await this.#mounted(view, mount)
      const file = await tree.open(path)
      if (file) return file
      if (await anyBelow(tree, path)) throw vfsErrors.isFolder()
      throw noFile()
    }
    const end = this.#shares.take(view.tenantId)
    try {
      const file = bytesOf ? await this.#noted(view, { operation: 'read', mount, path }, open, bytesOf) : await open()
      return {
        info: file.info,
        close: () => file.close().finally(end),
        read: async (range) => {
          const body = await file.read(range).catch((error: unknown) => {
            end()
            throw error
          })
          const readable = body instanceof Readable ? body : Readable.from(body, { objectMode: false })
          this.#options.metrics.bytes.inc({ direction: 'out' }, range ? range.to - range.from + 1 : file.info.bytes)
          return readable.once('close', end)
        },
      }
    } catch (error) {
      end()
      throw error
    }
  }

  write(view: VfsView, mount: string, path: string, { body, bytes: announced, contentType, when }: NewFile) {
    const { fileBytes, arriving, metrics } = this.#options
    const work = async () => {
      if (!isNewVfsPath(path)) throw vfsErrors.invalidPath()
      if (!/^[\x20-\x7e]{1,255}$/.test(contentType))
        throw httpErrors.unsupportedMediaType({ message: 'A content type is at most 255 characters of ASCII.' })
      const { tree, readOnly } = await this.#mounted(view, mount)
      if (readOnly) throw vfsErrors.readOnlyMount()
      if ((announced ?? 0) > fileBytes) throw tooLarge(fileBytes)
      const upload = arriving.begin(view.tenantId, announced ?? 0)
      const digest = createHash('sha256')
      let [found, bytes] = ['', 0]
      const measured = async function* (): AsyncGenerator<Uint8Array> {
        try {
          for await (const chunk of body) {
            bytes += chunk.length
            if (bytes > fileBytes) throw tooLarge(fileBytes)
            upload.came(chunk.length)
            digest.update(chunk)
            yield chunk
          }
        } catch (cause) {
          throw isAppError(cause) ? cause : objectErrors.uploadBroken({ cause })
        }
        if (announced !== undefined && bytes !== announced) throw objectErrors.uploadBroken()
        found = digest.digest('hex')
        metrics.bytes.inc({ direction: 'in' }, bytes)
      }
      try {
        await this.#checkPlace(tree, path)
        const { info, replaced } = await tree.put(path, { body: measured(), sha256: () => found, contentType, when })
        return { entry: info, created: replaced === undefined }
      } finally {
        upload.over()
      }
    }
    return this.#noted(view, { operation: 'write', mount, path }, work, ({ entry }) => entry.bytes)
  }

  remove(view: VfsView, mount: string, path: string, ifMatch: string | undefined) {
    return this.#noted(view, { operation: 'delete', mount, path }, async () => {
      const folder = path.endsWith('/') ? path.slice(0, -1) : undefined
      check(folder ?? path)
      const { tree, readOnly } = await this.#mounted(view, mount)
      if (readOnly) throw vfsErrors.readOnlyMount()
      if (folder !== undefined) return removeBelow(tree, folder)
      if ((await tree.remove(path, ifMatch)) !== undefined) return { deleted: 1, more: false }
      if (await anyBelow(tree, path))
        throw vfsErrors.isFolder({
          message: 'There is a folder of this name; with a / at its end its files are deleted.',
        })
      throw noFile()
    })
  }

  search(view: VfsView, query: VfsSearchQuery): Promise<VfsMatches> {
    const { mount, path = '', q } = query
    return this.#noted(view, { operation: 'search', ...(mount === undefined ? {} : { mount }), path: q }, async () => {
      if (!isVfsFolder(path)) throw vfsErrors.invalidPath()
      const names = mount === undefined ? (await this.mounts(view)).map(({ name }) => name) : [mount]
      const trees = new Map<string, Tree>()
      for (const name of names) trees.set(name, (await this.#mounted(view, name)).tree)
      return search(trees, query)
    })
  }

  async #session({ tenantId, sessionId }: VfsView): Promise<Session | undefined> {
    return sessionId === undefined ? undefined : this.#options.sessions.use(tenantId, sessionId)
  }

  #allows({ kept }: Session, mount: string): boolean {
    return kept.allowedMounts.length === 0 || mount === this.#options.scratch || kept.allowedMounts.includes(mount)
  }

  /**
   * The files of a mount in this view. A mount outside the session's lease is refused even if it does not exist, so that a session learns nothing
   * about it.
   */
  async #mounted(view: VfsView, name: string): Promise<Mounted> {
    const { mounts, scratch } = this.#options
    const session = await this.#session(view)
    if (!session) {
      const found = await mounts.open(view.tenantId, name)
      if (!found) throw noMount()
      return found
    }
    if (!this.#allows(session, name)) {
      throw vfsErrors.mountNotAllowed({
        message: `The session may use these mounts: ${[...session.kept.allowedMounts, scratch].join(', ')}.`,
      })
    }
    if (name === scratch) return { tree: this.#inSpace(view.tenantId, session, name, 'files'), readOnly: false }
    const found = await mounts.open(view.tenantId, name)
    if (!found) throw noMount()
    if (!found.copyOnWrite) return found
    const [written, deleted] = ['files', 'deleted'].map((part) => this.#inSpace(view.tenantId, session, name, part))
    return { tree: new Overlay({ mount: found.tree, written: written!, deleted: deleted! }), readOnly: false }
  }

  #inSpace(tenantId: string, session: Session, mount: string, part: string): Tree {
    const { sessions, space } = this.#options
    const files = new ObjectTree(space, tenantId, `${session.kept.space}/${mount}/${part}/`)
    return countedTree(files, () => sessions.accounts(tenantId, session))
  }

  /** Refuses a path that would be both a file and a folder, because the files of a session are also copied to a disk. */
  async #checkPlace(tree: Tree, path: string): Promise<void> {
    const steps = path.split('/').slice(0, -1)
    const above = steps.map((_, i) => steps.slice(0, i + 1).join('/'))
    const [hasFiles, ...files] = await Promise.all([anyBelow(tree, path), ...above.map((folder) => tree.open(folder))])
    await Promise.all(files.map((file) => file?.close()))
    if (hasFiles) throw vfsErrors.isFolder()
    if (files.some(Boolean)) throw vfsErrors.isFile()
  }

  /**
   * Counts, times and audits one operation, as one of the tenant's concurrent requests. Its session is looked for before anything else: an audit of
   * one that never was takes memory and a file, and nothing closes it.
   */
  async #noted<T>(
    view: VfsView,
    access: Omit<VfsAccess, 'at' | 'outcome'>,
    work: () => Promise<T>,
    bytesOf?: (result: T) => number,
  ): Promise<T> {
    const { metrics } = this.#options
    const release = this.#shares.take(view.tenantId)
    const end = metrics.seconds.startTimer({ operation: access.operation })
    let outcome = 'failed'
    let bytes: number | undefined
    let session: Session | undefined
    try {
      session = await this.#session(view)
      const result = await work()
      outcome = 'ok'
      bytes = bytesOf?.(result)
      return result
    } catch (error) {
      if (isAppError(error)) outcome = error.code
      throw error
    } finally {
      release()
      end({ outcome: outcome === 'ok' || outcome === 'failed' ? outcome : 'refused' })
      if (session && outcome !== vfsErrors.noVfsSession.row.code) {
        const noted = this.#note(view.tenantId, session, {
          ...access,
          ...(bytes === undefined ? {} : { bytes }),
          outcome,
        })
        if (access.operation === 'write' || access.operation === 'delete') await noted
      }
    }
  }

  async #note(tenantId: string, { kept: { sessionId } }: Session, access: Omit<VfsAccess, 'at'>): Promise<void> {
    const { audit, sessions } = this.#options
    await audit.note(tenantId, sessionId, access)
    // It was closed while the operation was under way, and nobody closes it again.
    if (!(await sessions.isOpen(tenantId, sessionId))) await audit.rest(tenantId, sessionId)
  }
}

function check(path: string): void {
  if (!isVfsPath(path)) throw vfsErrors.invalidPath()
}

const noMount = () => notFound({ message: 'No mount has this name.' })
const noFile = () => notFound({ message: 'No file has this path.' })
const tooLarge = (max: number) =>
  httpErrors.bodyTooLarge({ message: `A file has at most ${max} bytes here.`, detail: { max } })

async function removeBelow(tree: Tree, folder: string) {
  const paths: string[] = []
  let more = false
  for await (const { path } of tree.walk(folder, { after: '', recursive: true, limit: mostEntriesAtOnce })) {
    if (paths.length === Math.min(mostEntriesAtOnce, mostObjectsAtOnce)) {
      more = true
      break
    }
    paths.push(path)
  }
  if (paths.length === 0) throw notFound({ message: 'No files are in this folder.' })
  for (const path of paths) await tree.remove(path)
  return { deleted: paths.length, more }
}

/** Decodes a cursor. A forged cursor leads to some place in the same mount, or is refused, because not every store accepts any text. */
function placeIn(cursor: string): string {
  const place = Buffer.from(cursor, 'base64url').toString('utf8')
  if (isVfsFolder(place.replace(/\/$/, ''))) return place
  throw invalidField('querystring/cursor', 'is not a cursor of this list; begin without it')
}
