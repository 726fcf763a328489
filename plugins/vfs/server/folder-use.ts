import { limitErrors } from '#contracts/limits'
import type { FolderTree } from './folder.ts'
import type { Account, Counts } from './usage.ts'

/** Milliseconds for which a count is used. Other programs may write to the folder as well. */
const freshMs = 10 * 60_000

/** What is in a mounted folder: counted at the first write, and again behind the first write after ten minutes. */
export class FolderUse {
  readonly #folder: Pick<FolderTree, 'use'>
  #counts: Promise<Counts> | undefined
  #countedAt = 0

  constructor(folder: Pick<FolderTree, 'use'>) {
    this.#folder = folder
  }

  /** Bounds the folder. A bound of undefined is none. */
  async account(most: { readonly bytes: number | undefined; readonly entries: number | undefined }): Promise<Account> {
    const { bytes = Infinity, entries = Infinity } = most
    return { counts: await this.#current(), most: () => ({ bytes, entries }), over: overFolder }
  }

  async #current(): Promise<Counts> {
    if (!this.#counts) {
      this.#countedAt = Date.now()
      this.#counts = this.#folder.use()
      this.#counts.catch(() => (this.#counts = undefined))
    }
    const counts = await this.#counts
    if (Date.now() - this.#countedAt > freshMs) {
      this.#countedAt = Date.now()
      void this.#renew(counts).catch(() => {})
    }
    return counts
  }

  async #renew(counts: Counts): Promise<void> {
    const before = { ...counts }
    const found = await this.#folder.use()
    counts.bytes = Math.max(0, found.bytes + counts.bytes - before.bytes)
    counts.entries = Math.max(0, found.entries + counts.entries - before.entries)
  }
}

const overFolder = (what: keyof Counts, max: number) => {
  const things = what === 'bytes' ? 'bytes' : 'files'
  return limitErrors.limitExceeded({
    message: `The folder of this mount may have ${max} ${things}, with those of other programs.`,
    detail: { limit: `mount ${things}`, max },
  })
}
