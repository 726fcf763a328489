import { readdir, stat } from 'node:fs/promises'
import { setImmediate as turn } from 'node:timers/promises'
import { join } from 'node:path'
import { before, inOrder, mostBytes, type Named } from './names.ts'

/** How many names of a folder are sorted at once. Larger folders are sorted in slices, so that other work gets a turn. */
const atOnce = 2_000
/** The most names of large folders that are cached, in total. */
const mostKept = 400_000
/** Milliseconds. A folder that changed more recently may change again within the same tick of its clock, so it is not cached. */
const settledMs = 1_000

interface Kept {
  readonly changedAt: number
  readonly names: readonly Named[]
}

/** The names in folders, in the order of keys. The names of a large folder are cached for the next page until the folder changes. */
export class Listings {
  readonly #kept = new Map<string, Kept>()
  #size = 0

  /** The names in a folder. Empty for a folder that does not exist. */
  async of(folder: string): Promise<readonly Named[]> {
    const changedAt = await changeOf(folder)
    if (changedAt === undefined) return []
    const kept = this.#take(folder)
    if (kept && kept.changedAt === changedAt) return this.#keep(folder, kept)
    const readAt = Date.now()
    const found = await readdir(folder).catch(absent)
    if (!found) return []
    if (found.length <= atOnce) return inOrder(found)
    const names = await sorted(found)
    return readAt - changedAt > settledMs ? this.#keep(folder, { changedAt, names }) : names
  }

  #take(folder: string): Kept | undefined {
    const kept = this.#kept.get(folder)
    this.#size -= kept?.names.length ?? 0
    this.#kept.delete(folder)
    return kept
  }
  #keep(folder: string, kept: Kept): readonly Named[] {
    this.#take(folder)
    this.#kept.set(folder, kept)
    this.#size += kept.names.length
    for (const oldest of this.#kept.keys()) {
      if (this.#size <= mostKept) break
      this.#take(oldest)
    }
    return kept.names
  }
}

const absent = (error: NodeJS.ErrnoException): undefined => {
  if (error.code !== 'ENOENT' && error.code !== 'ENOTDIR') throw error
}
const changeOf = async (folder: string): Promise<number | undefined> => (await stat(folder).catch(absent))?.mtimeMs

/** Merge sort: sorts slices, then merges pairs of them until one remains. */
async function sorted(names: readonly string[]): Promise<readonly Named[]> {
  let parts: Named[][] = []
  for (let from = 0; from < names.length; from += atOnce) {
    parts.push(inOrder(names.slice(from, from + atOnce)))
    await turn()
  }
  while (parts.length > 1) {
    const pairs: Named[][] = []
    for (let i = 0; i < parts.length; i += 2) pairs.push(await merged(parts[i]!, parts[i + 1] ?? []))
    parts = pairs
  }
  return parts[0] ?? []
}

async function merged(a: readonly Named[], b: readonly Named[]): Promise<Named[]> {
  const all: Named[] = []
  let i = 0
  let j = 0
  while (i < a.length || j < b.length) {
    const first = j === b.length || (i < a.length && before(a[i]!, b[j]!) < 0)
    all.push(first ? a[i++]! : b[j++]!)
    if (all.length % (5 * atOnce) === 0) await turn()
  }
  return all
}

interface Found {
  readonly key: string
  readonly path: string
}

/** Walks the objects of a folder in the order of their keys, and opens only folders that may contain requested keys. */
export class Walk {
  readonly #listings: Listings
  readonly #root: string
  readonly #prefix: Buffer
  #after: Buffer

  constructor(listings: Listings, root: string, prefix: string, after: string) {
    this.#listings = listings
    this.#root = root
    this.#prefix = Buffer.from(prefix)
    this.#after = Buffer.from(after)
  }

  files(): AsyncGenerator<Found> {
    return this.#below(this.#root, Buffer.alloc(0))
  }
  /** Continues with keys after this text only. */
  skipTo(after: string): void {
    this.#after = Buffer.from(after)
  }

  async *#below(folder: string, base: Buffer): AsyncGenerator<Found> {
    const names = await this.#listings.of(folder)
    let after = this.#after
    for (let i = this.#firstOf(names, base); i < names.length; i++) {
      const { name, isFile, piece } = names[i]!
      const begun = Buffer.concat([base, piece])
      if (isPast(begun, this.#prefix)) return
      const path = join(folder, name)
      if (!isFile) {
        if (this.#mayHold(begun)) yield* this.#below(path, begun)
      } else if (startsWith(begun, this.#prefix) && begun.compare(this.#after) > 0) {
        yield { key: begun.toString('utf8'), path }
      }
      // The reader has called `skipTo`. A folder may have a hundred thousand names to skip, so they are not looked at one by one.
      if (after !== this.#after) {
        after = this.#after
        i = Math.max(i, this.#firstOf(names, base) - 1)
      }
    }
  }
  /** The index of the first name that may be requested: earlier names lead neither past `after` nor to the prefix. */
  #firstOf(names: readonly Named[], base: Buffer): number {
    const isSkipped = this.#after.compare(base) > 0 && !startsWith(this.#after, base)
    if (isSkipped) return names.length
    return Math.max(firstFrom(names, pieceOf(this.#after, base)), firstFrom(names, pieceOf(this.#prefix, base)))
  }
  #mayHold(begun: Buffer): boolean {
    const wanted = startsWith(begun, this.#prefix) || startsWith(this.#prefix, begun)
    return wanted && (begun.compare(this.#after) > 0 || startsWith(this.#after, begun))
  }
}

const slash = 0x2f
/** The part of `key` that names in the folder of `base` represent. Empty for a key that is elsewhere. */
function pieceOf(key: Buffer, base: Buffer): Buffer {
  if (!startsWith(key, base)) return Buffer.alloc(0)
  const rest = key.subarray(base.length)
  const end = rest.indexOf(slash) + 1
  return rest.subarray(0, Math.min(end || rest.length, mostBytes))
}

/** The index of the first name that does not come before a part. */
function firstFrom(names: readonly Named[], piece: Buffer): number {
  let from = 0
  let to = names.length
  while (from < to) {
    const middle = (from + to) >> 1
    if (names[middle]!.piece.compare(piece) < 0) from = middle + 1
    else to = middle
  }
  return from
}

const startsWith = (bytes: Buffer, start: Buffer): boolean => bytes.subarray(0, start.length).equals(start)
/** True for bytes after all keys with the prefix. */
const isPast = (bytes: Buffer, prefix: Buffer): boolean =>
  bytes.compare(prefix) > 0 && !startsWith(bytes, prefix) && !startsWith(prefix, bytes)
