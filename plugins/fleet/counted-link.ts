import { isAppError } from '#kernel'
import type { AttachRun, ExecuteRun, RunnerLink } from '#contracts/runner'

/** A link to a runner that counts the runs which this process reads over it. */
export class CountedLink implements RunnerLink {
  /** Runs under way. */
  running = 0
  readonly #link: RunnerLink
  readonly #refused: () => void

  /** `refused` is called when a run's stream fails with 503: the runner may be away. */
  constructor(link: RunnerLink, refused: () => void) {
    this.#link = link
    this.#refused = refused
  }

  get hash(): string {
    return this.#link.hash
  }
  execute(tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncIterable<Buffer> {
    return this.#counted(this.#link.execute(tenantId, run, signal))
  }
  attach(tenantId: string, from: AttachRun, signal: AbortSignal): AsyncIterable<Buffer> {
    return this.#counted(this.#link.attach(tenantId, from, signal))
  }

  readonly info: RunnerLink['info'] = (signal) => this.#link.info(signal)
  readonly takeBroadcast: RunnerLink['takeBroadcast'] = (tenantId, page) => this.#link.takeBroadcast(tenantId, page)
  readonly behind: RunnerLink['behind'] = (revisions) => this.#link.behind(revisions)
  readonly getSession: RunnerLink['getSession'] = (...args) => this.#link.getSession(...args)
  readonly deleteSession: RunnerLink['deleteSession'] = (...args) => this.#link.deleteSession(...args)
  readonly hydrate: RunnerLink['hydrate'] = (...args) => this.#link.hydrate(...args)
  readonly exportState: RunnerLink['exportState'] = (...args) => this.#link.exportState(...args)
  readonly unsaved: RunnerLink['unsaved'] = () => this.#link.unsaved()
  readonly topology: RunnerLink['topology'] = (signal) => this.#link.topology(signal)
  readonly workerLeases: RunnerLink['workerLeases'] = (...args) => this.#link.workerLeases(...args)
  readonly workerLease: RunnerLink['workerLease'] = (...args) => this.#link.workerLease(...args)
  readonly invalidateSandbox: RunnerLink['invalidateSandbox'] = (...args) => this.#link.invalidateSandbox(...args)
  readonly vfsLeases: RunnerLink['vfsLeases'] = (...args) => this.#link.vfsLeases(...args)
  readonly vfsLease: RunnerLink['vfsLease'] = (...args) => this.#link.vfsLease(...args)
  readonly delegations: RunnerLink['delegations'] = (...args) => this.#link.delegations(...args)
  readonly answerDelegation: RunnerLink['answerDelegation'] = (...args) => this.#link.answerDelegation(...args)

  /** A run's stream, counted from its first read to its end; nothing is added to a chunk's cost but its own promise. */
  #counted(source: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
    let chunks: AsyncIterator<Buffer> | undefined
    let over = false
    const end = (): void => {
      if (!over) this.running--
      over = true
    }
    const failed = (error: unknown): never => {
      end()
      if (isAppError(error) && error.status === 503) this.#refused()
      throw error
    }
    const read = (result: IteratorResult<Buffer>): IteratorResult<Buffer> => {
      if (result.done) end()
      return result
    }
    const all: AsyncIterableIterator<Buffer> = {
      [Symbol.asyncIterator]: () => all,
      next: () => {
        if (!chunks) {
          this.running++
          chunks = source[Symbol.asyncIterator]()
        }
        return chunks.next().then(read, failed)
      },
      async return() {
        const begun = chunks
        chunks ??= source[Symbol.asyncIterator]()
        if (begun) end()
        return (await chunks.return?.()) ?? { done: true, value: undefined }
      },
    }
    return all
  }
}
