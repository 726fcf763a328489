import type { FastifyBaseLogger } from 'fastify'
import { tenantKey } from '#contracts/ids'
import type { Claim, RunStore } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'

/** Milliseconds. A session is saved once it was idle for this long, so that a lively conversation is not saved after every answer. */
const restMs = 1_000
const concurrency = 4
/** Sessions that wait to be saved. Beyond this number the oldest stay unsaved and depend on their runner. */
const maxWaiting = 50_000

interface Waiting {
  readonly tenantId: string
  readonly sessionId: string
  readonly link: RunnerLink
  /** The epoch of the session's last claim. Undefined: another process executed the last run, so the store is asked. */
  readonly epoch: number | undefined
  readonly due: number
}

/** Copies the conversations of idle sessions from their runners to the store, with lower priority than everything else. */
export class StateSaver {
  readonly #store: RunStore
  readonly #log: FastifyBaseLogger
  readonly #onGrown: (tenantId: string, bytes: number) => void
  readonly #delayMs: number
  /** Insertion order is the order of `due`, because every session waits equally long. */
  readonly #waiting = new Map<string, Waiting>()
  readonly #saving = new Map<string, Promise<void>>()
  #timer: NodeJS.Timeout | undefined
  #draining = false

  /** `onGrown` is called with the additional bytes that were stored. */
  constructor(
    store: RunStore,
    log: FastifyBaseLogger,
    onGrown: (tenantId: string, bytes: number) => void = () => {},
    delayMs = restMs,
  ) {
    this.#store = store
    this.#log = log
    this.#onGrown = onGrown
    this.#delayMs = delayMs
  }

  /** Called when the run of this claim ended and the session is idle on this runner. */
  rest({ tenantId, sessionId, epoch }: Claim, link: RunnerLink): void {
    const key = tenantKey(tenantId, sessionId)
    this.#waiting.delete(key)
    this.#waiting.set(key, { tenantId, sessionId, link, epoch, due: Date.now() + this.#delayMs })
    if (this.#waiting.size > maxWaiting) this.#waiting.delete(this.#waiting.keys().next().value!)
    if (this.#timer === undefined) this.#pump()
  }
  /**
   * Called when a run of the session began, because an export would now contain half a turn. Returns the runner from which the session would have
   * been exported.
   */
  busy(tenantId: string, sessionId: string): RunnerLink | undefined {
    const key = tenantKey(tenantId, sessionId)
    const link = this.#waiting.get(key)?.link
    this.#waiting.delete(key)
    return link
  }
  /** Saves at once the conversations that only this runner has, because it is about to stop. Never rejects. */
  async evacuate(link: RunnerLink): Promise<void> {
    const unsaved = await link.unsaved().catch((err: unknown) => {
      this.#log.warn({ err, runner: link.hash }, 'a stopping runner did not report its unsaved sessions')
      return []
    })
    const later = [...this.#waiting]
    this.#waiting.clear()
    for (const { tenantId, sessionId } of unsaved) {
      const key = tenantKey(tenantId, sessionId)
      if (!this.#saving.has(key)) this.#waiting.set(key, { tenantId, sessionId, link, epoch: undefined, due: 0 })
    }
    for (const [key, entry] of later) if (!this.#waiting.has(key)) this.#waiting.set(key, entry)
    this.#pump()
  }
  /** Saves all waiting sessions now, for a graceful stop. */
  async drain(): Promise<void> {
    this.#draining = true
    this.#pump()
    while (this.#saving.size > 0) await Promise.race(this.#saving.values())
  }

  #pump(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (const [key, entry] of this.#waiting) {
      const wait = entry.due - Date.now()
      if (!this.#draining && wait > 0) {
        this.#timer = setTimeout(() => this.#pump(), wait).unref()
        return
      }
      if (this.#saving.size >= concurrency) return
      // An older export of this session is still on its way. It must not arrive after the newer one.
      if (this.#saving.has(key)) continue
      this.#waiting.delete(key)
      const saved = this.#save(entry).finally(() => {
        this.#saving.delete(key)
        this.#pump()
      })
      this.#saving.set(key, saved)
    }
  }
  async #save({ tenantId, sessionId, link, epoch }: Waiting): Promise<void> {
    try {
      // Read the epoch before the export: a run that begins in between raises it, and the store then refuses the half turn.
      const known = epoch ?? (await this.#store.findSession(tenantId, sessionId))?.epoch
      if (known === undefined) return
      const bundle = await link.exportState(tenantId, sessionId)
      if (!bundle) return
      const grown = await this.#store.saveState(tenantId, sessionId, bundle, { runner: link.hash, epoch: known })
      if (grown !== undefined) this.#onGrown(tenantId, grown)
    } catch (err) {
      // The export is retried after the session's next run. Until then the runner still has the conversation.
      this.#log.warn({ err, sessionId }, 'the state of a session could not be saved')
    }
  }
}
