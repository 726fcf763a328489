import type { FastifyBaseLogger } from 'fastify'
import type { Audit } from './audit.ts'
import type { Sessions } from './sessions.ts'

interface Options {
  readonly sessions: Sessions
  readonly audit: Audit
  readonly idleMs: number
  readonly auditMs: number
  readonly log: FastifyBaseLogger
}

/**
 * Closes unused sessions, and removes expired audit and files that dead processes left. It runs from the start of the process, and only on the
 * server's own folder.
 */
export class Sweeper {
  readonly #options: Options
  #timer: NodeJS.Timeout | undefined
  #under: Promise<void> = Promise.resolve()
  #stopped = false

  constructor(options: Options) {
    this.#options = options
  }

  start(everyMs: number): void {
    const next = (): void => {
      this.#under = this.sweep().finally(() => {
        if (!this.#stopped) this.#timer = setTimeout(next, everyMs).unref()
      })
    }
    next()
  }

  async sweep(): Promise<void> {
    const { sessions, audit, idleMs, auditMs, log } = this.#options
    for (const tenantId of await sessions.tenants()) {
      if (this.#stopped) return
      try {
        const closed = await sessions.sweep(tenantId, Date.now() - idleMs)
        for (const id of closed) await audit.rest(tenantId, id)
        if (closed.length > 0) log.info({ tenantId, closed: closed.length }, 'idle VirtualFS sessions were closed')
        await audit.expire(tenantId, Date.now() - auditMs)
      } catch (err) {
        log.warn({ err, tenantId }, 'leftovers of VirtualFS sessions could not be removed')
      }
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#timer)
    await this.#under
    await this.#options.sessions.settled()
  }
}
