import { readdir, stat } from 'node:fs/promises'
import { setImmediate as turn } from 'node:timers/promises'
import { before, inOrder, type Named } from './names.ts'

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
