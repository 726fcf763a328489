import type { FastifyReply } from 'fastify'
import type { Worker } from './worker.ts'

/** One exchange of a kind with each worker: bodies of tens of MiB are held for it, and a worker can open hundreds of connections. */
export interface Newest {
  /** Closes the connection of the former one, unless that is over. */
  begin(worker: Worker, reply: FastifyReply): void
}

export function createNewest(): Newest {
  const latest = new WeakMap<Worker, FastifyReply>()
  return {
    begin(worker, reply) {
      latest.get(worker)?.raw.destroy()
      latest.set(worker, reply)
      reply.raw.once('close', () => {
        if (latest.get(worker) === reply) latest.delete(worker)
      })
    },
  }
}

/** One each for all listeners. */
export interface NewestOfAll {
  readonly answers: Newest
  readonly downloads: Newest
  readonly uploads: Newest
}

export const createNewestOfAll = (): NewestOfAll => ({
  answers: createNewest(),
  downloads: createNewest(),
  uploads: createNewest(),
})
