import { join } from 'node:path'
import type { Listings } from './listings.ts'
import { mostBytes, type Named } from './names.ts'

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
    }
  }
  /** The index of the first name that may be requested: earlier names lead neither past `after` nor to the prefix. */
  #firstOf(names: readonly Named[], base: Buffer): number {
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
