import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { inOrder } from './names.ts'

interface Found {
  readonly key: string
  readonly path: string
}

/** Walks the objects of a folder in the order of their keys, and reads only folders in which some may be that are wanted. */
export class Walk {
  readonly #root: string
  readonly #prefix: Buffer
  #after: Buffer

  constructor(root: string, prefix: string, after: string) {
    this.#root = root
    this.#prefix = Buffer.from(prefix)
    this.#after = Buffer.from(after)
  }

  files(): AsyncGenerator<Found> {
    return this.#below(this.#root, Buffer.alloc(0))
  }
  /** From now on only what comes behind this text. */
  skipTo(after: string): void {
    this.#after = Buffer.from(after)
  }

  async *#below(folder: string, base: Buffer): AsyncGenerator<Found> {
    const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return []
      throw error
    })
    for (const { name, isFile, piece } of inOrder(names)) {
      const begun = Buffer.concat([base, piece])
      const path = join(folder, name)
      if (!isFile) {
        if (this.#mayHold(begun)) yield* this.#below(path, begun)
      } else if (startsWith(begun, this.#prefix) && begun.compare(this.#after) > 0) {
        yield { key: begun.toString('utf8'), path }
      }
    }
  }
  #mayHold(begun: Buffer): boolean {
    const wanted = startsWith(begun, this.#prefix) || startsWith(this.#prefix, begun)
    return wanted && (begun.compare(this.#after) > 0 || startsWith(this.#after, begun))
  }
}

const startsWith = (bytes: Buffer, start: Buffer): boolean => bytes.subarray(0, start.length).equals(start)
