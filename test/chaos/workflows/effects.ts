import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from '../random.ts'

/** Something that a node did. */
export interface Effect {
  /** `<run>/<node>/<attempt that may have begun it>`. */
  readonly key: string
  readonly attempt: number
  readonly at: number
  /** The answer that the node was given. */
  readonly ok: boolean
}

/** A server that writes down what is asked of it. One in ten fails, some take seconds. */
export async function startEffects(random: Random) {
  const seen: Effect[] = []
  const server = createServer((request, reply) => {
    const ok = !random.chance(0.1)
    const key = String(request.headers['idempotency-key'])
    seen.push({ key, attempt: Number(request.headers['workflow-attempt']), at: Date.now(), ok })
    const ms = random.chance(0.1) ? random.between(500, 4_000) : random.between(0, 50)
    void sleep(ms).then(() =>
      reply.writeHead(ok ? 200 : 500, { 'content-type': 'application/json' }).end('{"done":true}'),
    )
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    seen,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    stop: async () => {
      server.closeAllConnections()
      server.close()
    },
  }
}
