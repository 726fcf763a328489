import type { FastifyBaseLogger } from 'fastify'
import { tenantKey } from '#contracts/ids'
import type { Claim, RunStore } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'

/** A session is saved when it was idle for this long, so that a lively conversation is not saved after each answer. */
const restMs = 1_000
const concurrency = 4
/** Sessions waiting to be saved; beyond it the oldest are only as safe as their runner. */
const maxWaiting = 50_000

interface Waiting {
  readonly tenantId: string
  readonly sessionId: string
  readonly link: RunnerLink
  /** The epoch of the session's last claim. Undefined when this process did not execute the last run: then the store is asked. */
  readonly epoch: number | undefined
  readonly due: number
}

/** Copies the conversations of resting sessions from their runners to the store, behind everything else. */
export class StateSaver {
  readonly #store: RunStore
  readonly #log: FastifyBaseLogger
  readonly #onGrown: (tenantId: string, bytes: number) => void
  readonly #delayMs: number
  /** In order of `due`, because every session waits equally long. */
  readonly #waiting = new Map<string, Waiting>()
  readonly #saving = new Map<string, Promise<void>>()
  #timer: NodeJS.Timeout | undefined
  #draining = false

  /** `onGrown` hears by how many bytes more is stored. */
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

  /** The run of this claim ended, and the session rests on this runner. */
  rest({ tenantId, sessionId, epoch }: Claim, link: RunnerLink): void {
    const key = tenantKey(tenantId, sessionId)
    this.#waiting.delete(key)
    this.#waiting.set(key, { tenantId, sessionId, link, epoch, due: Date.now() + this.#delayMs })
    if (this.#waiting.size > maxWaiting) this.#waiting.delete(this.#waiting.keys().next().value!)
    if (this.#timer === undefined) this.#pump()
  }
  /** A run of the session began: what is exported now would be half a turn. Returns the runner it would have been exported from. */
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
  /** Saves what waits, now; for a graceful stop. */
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
      // An older export of the same session is still on its way: it must not arrive after the newer one.
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
      // Before the export: a run that comes in between raises it, and the store refuses what is half a turn.
      const known = epoch ?? (await this.#store.findSession(tenantId, sessionId))?.epoch
      if (known === undefined) return
      const bundle = await link.exportState(tenantId, sessionId)
      if (!bundle) return
      const grown = await this.#store.saveState(tenantId, sessionId, bundle, { runner: link.hash, epoch: known })
      if (grown !== undefined) this.#onGrown(tenantId, grown)
    } catch (err) {
      // It is tried again after the session's next run; until then the runner still has the conversation.
      this.#log.warn({ err, sessionId }, 'the state of a session could not be saved')
    }
  }
}
