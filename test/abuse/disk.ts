import { type FileHandle, open } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'

const pauseMs = 100
/** A page of PostgreSQL's log. */
const page = Buffer.alloc(8_192)

/**
 * How long the disk takes to flush, asked ten times a second as long as it lives: each chat waits for some of its flushes. On a machine whose disk is
 * slow now and then, it says whether a slow second was the disk's or the fleet's.
 */
export class DiskProbe {
  readonly #file: FileHandle
  readonly #over: Promise<void>
  #stopped = false
  #slowest = 0

  private constructor(file: FileHandle) {
    this.#file = file
    this.#over = this.#ask()
  }
  /** `path`: a file that is made anew, on the disk of the database. */
  static async at(path: string): Promise<DiskProbe> {
    return new DiskProbe(await open(path, 'w'))
  }
  /** The slowest flush since the last call, in milliseconds. */
  slowest(): number {
    const slowest = this.#slowest
    this.#slowest = 0
    return slowest
  }
  async stop(): Promise<void> {
    this.#stopped = true
    await this.#over
    await this.#file.close()
  }

  async #ask(): Promise<void> {
    while (!this.#stopped) {
      const began = performance.now()
      await this.#file.write(page, 0, page.length, 0)
      await this.#file.datasync()
      this.#slowest = Math.max(this.#slowest, performance.now() - began)
      await sleep(pauseMs)
    }
  }
}
