import { objectErrors, type NewObject, type WriteCondition } from '#contracts/object-store'
import type { VfsEntry } from '#contracts/vfs'
import { emptyFile, isBefore, type OpenFile, placeOf, type Tree, type Walk } from './tree.ts'

interface Layers {
  /** The mount, which is only read. */
  readonly mount: Tree
  /** The files that the session has written. */
  readonly written: Tree
  /**
   * Marks of files that the session has deleted. A mark hides the file of the mount with the same path, but not a file that the session wrote
   * later.
   */
  readonly deleted: Tree
}

/** A mount with the changes of one session. The mount itself is never changed. */
export class Overlay implements Tree {
  readonly #layers: Layers

  constructor(layers: Layers) {
    this.#layers = layers
  }

  async *walk(folder: string, walk: Walk): AsyncGenerator<VfsEntry> {
    const { mount, written, deleted } = this.#layers
    const under = new Ahead(mount.walk(folder, walk))
    const over = new Ahead(written.walk(folder, walk))
    const gone = new Ahead(deleted.walk(folder, walk))
    try {
      for (;;) {
        const [below, above] = [await under.peek(), await over.peek()]
        if (!below && !above) return
        if (above && (!below || !isBefore(placeOf(below), placeOf(above)))) {
          if (below && placeOf(below) === placeOf(above)) under.take()
          over.take()
          yield above
        } else if (below) {
          under.take()
          if (!(await gone.has(placeOf(below))) || (below.kind === 'folder' && (await this.#isLeftIn(below.path)))) {
            yield below
          }
        }
      }
    } finally {
      await Promise.all([under.close(), over.close(), gone.close()])
    }
  }

  async open(path: string): Promise<OpenFile | undefined> {
    const { mount, written } = this.#layers
    const above = await written.open(path)
    if (above) return above
    return (await this.#isDeleted(path)) ? undefined : mount.open(path)
  }

  async put(path: string, file: NewObject) {
    return this.#layers.written.put(path, {
      ...file,
      sha256: () => file.sha256(),
      when: await this.#condition(path, file.when),
    })
  }

  async remove(path: string, ifMatch?: string): Promise<number | undefined> {
    const { mount, written, deleted } = this.#layers
    const below = (await this.#isDeleted(path)) ? undefined : await mount.open(path)
    await below?.close()
    const above = await written.open(path)
    await above?.close()
    const { info } = above ?? below ?? {}
    if (!info) return undefined
    if (ifMatch !== undefined && ifMatch !== '*' && ifMatch !== info.etag) throw objectErrors.preconditionFailed()
    // The mark is written first. If the process dies before the removal, nothing is deleted; the other order would bring the mount's file back.
    if (below) await deleted.put(path, emptyFile())
    if (above) await written.remove(path, ifMatch)
    return info.bytes
  }

  /** Translates a condition on the visible file into a condition on the written layer. */
  async #condition(path: string, when: WriteCondition): Promise<WriteCondition> {
    if (when.ifMatch === undefined && when.ifNoneMatch === undefined) return {}
    const { written } = this.#layers
    const above = await written.open(path)
    await above?.close()
    if (above) return when
    const seen = await this.open(path)
    await seen?.close()
    const { ifMatch, ifNoneMatch } = when
    const holds = seen ? !ifNoneMatch && (ifMatch === '*' || ifMatch === seen.info.etag) : ifMatch === undefined
    if (!holds) throw objectErrors.preconditionFailed()
    return { ifNoneMatch: '*' }
  }

  async #isDeleted(path: string): Promise<boolean> {
    const mark = await this.#layers.deleted.open(path)
    await mark?.close()
    return mark !== undefined
  }

  /** True if at least one file of this folder of the mount is not deleted. */
  async #isLeftIn(folder: string): Promise<boolean> {
    const { mount, deleted } = this.#layers
    const all: Walk = { after: '', recursive: true, limit: 1_000 }
    const gone = new Ahead(deleted.walk(folder, all))
    try {
      for await (const file of mount.walk(folder, all)) if (!(await gone.has(file.path))) return true
      return false
    } finally {
      await gone.close()
    }
  }
}

/** An iterator whose next entry can be inspected before it is taken. */
class Ahead {
  readonly #entries: AsyncIterator<VfsEntry>
  #next: Promise<IteratorResult<VfsEntry, unknown>> | undefined

  constructor(entries: AsyncIterable<VfsEntry>) {
    this.#entries = entries[Symbol.asyncIterator]()
  }
  async peek(): Promise<VfsEntry | undefined> {
    const { done, value } = await (this.#next ??= this.#entries.next())
    return done ? undefined : (value as VfsEntry)
  }
  take(): void {
    this.#next = undefined
  }
  /** True if there is an entry at this place. Entries before the place are dropped, so places must be asked in ascending order. */
  async has(place: string): Promise<boolean> {
    for (;;) {
      const entry = await this.peek()
      if (!entry || isBefore(place, placeOf(entry))) return false
      if (placeOf(entry) === place) return true
      this.take()
    }
  }
  async close(): Promise<void> {
    await this.#entries.return?.()
  }
}
