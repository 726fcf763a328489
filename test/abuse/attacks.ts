import { connect, type Socket } from 'node:net'
import type { Attack } from './attack.ts'
import { around, Client, clientOf, flood } from './client.ts'
import { judgeDelegations } from './delegations.ts'
import { attacksOnStores } from './stores.ts'

/** 2,500 alternatives: 36 KB that took a second to compile. */
const heavySchema = (n: number) => ({
  oneOf: Array.from({ length: 2_500 }, (_, i) => ({ type: 'string', const: `${n}-${i}` })),
})

/** Of one message in a long conversation. */
const promptBytes = 620_000

/** Starts a run, and reads its stream to its end. Resolves to the session it was in. */
async function runThrough(client: Client, body: object): Promise<string | undefined> {
  const accepted = await client.send('POST', '/api/runs', body)
  if (accepted === '') return undefined
  const { runId, sessionId } = JSON.parse(accepted) as { runId: string; sessionId: string }
  await client.send('GET', `/api/runs/${runId}/stream`)
  return sessionId
}

/** Who said all that is exported. */
const endUser = 'somebody'

/** What is summed up, what a person is given of theirs, and what a run has logged. */
const figuresExportsAndLogs: Attack = {
  name: 'figures, exports and logs, 16 at a time',
  async prepare(hostile, told) {
    const client = clientOf(hostile, told)
    const metadata = { end_user_id: endUser }
    const body = around((prompt) => ({ profile: hostile.profiles.quick, prompt, metadata }))
    for (let n = 0; n < 30; n++) await runThrough(client, body('x'.repeat(300_000)))
    await client.close()
  },
  async run(hostile, told, stop) {
    const client = clientOf(hostile, told)
    // Exports whose parts take turns would go on for half a minute.
    stop.addEventListener('abort', () => void client.close(), { once: true })
    const found = await client.send('GET', '/api/runs?limit=20&status=ok')
    const ids = (found === '' ? [] : JSON.parse(found)) as { runId: string }[]
    const paths = [
      '/api/stats/overview?window=30d',
      `/api/end-users/${endUser}/export`,
      '/api/stats/agents?window=30d',
      '/api/runs/(run)',
      '/api/stats/timeseries?window=30d',
      '/api/runs/(run)/events',
      '/api/webhooks/deliveries',
      '/api/usage?window=30d',
    ]
    await flood(16, stop, (n) => {
      const { runId = 'none' } = ids[n % Math.max(1, ids.length)] ?? {}
      return client.send('GET', paths[n % paths.length]!.replace('(run)', runId))
    })
    await client.close()
  },
}

const single: readonly Attack[] = [
  {
    name: 'heavy schemas, 14 at a time',
    // One that takes longer than a schema may is refused with 400, which is what most of them come to on a slow machine.
    meant: /^(2\d\d|400|429)$/,
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const profile = hostile.profiles.quick
      await flood(14, stop, (n) =>
        client.send('POST', '/api/runs', {
          profile,
          prompt: 'x',
          responseFormat: { type: 'json_schema', name: 'x', schema: heavySchema(n) },
        }),
      )
      await client.close()
    },
  },
  {
    name: 'whole lists of long prompts, 8 at a time',
    async prepare(hostile, told) {
      const client = clientOf(hostile, told)
      const prompt = 'x'.repeat(900_000)
      for (let n = 0; n < 60; n++) await client.send('POST', '/api/runs', { profile: hostile.profiles.quick, prompt })
      await client.close()
    },
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      // Lists whose parts take turns would go on for half a minute.
      stop.addEventListener('abort', () => void client.close(), { once: true })
      await flood(8, stop, () => client.send('GET', '/api/runs'))
      await client.close()
    },
  },
  {
    name: 'runs that hang, 20 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      await flood(20, stop, () => client.send('POST', '/api/runs', { profile: hostile.profiles.hanging, prompt: 'x' }))
      await client.close()
    },
  },
  {
    name: '300 streams that nobody reads',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const body = { profile: hostile.profiles.hanging, prompt: 'x'.repeat(100_000) }
      const started = await client.send('POST', '/api/runs', body)
      const { runId = 'none' } = (started === '' ? {} : JSON.parse(started)) as { runId?: string }
      const { hostname, port } = new URL(hostile.conductor)
      const sockets: Socket[] = []
      for (let i = 0; i < 300; i++) {
        const socket = connect(Number(port), hostname)
        socket.on('error', () => {})
        socket.pause()
        socket.write(
          `GET /api/runs/${runId}/stream HTTP/1.1\r\nHost: ${hostname}\r\nAuthorization: Bearer ${hostile.key}\r\n\r\n`,
        )
        sockets.push(socket)
        told('opened')
      }
      // Beside them it asks for what needs the database.
      await flood(8, stop, () => client.send('GET', '/api/sessions?limit=50'))
      for (const socket of sockets) socket.destroy()
      await client.close()
    },
  },
  {
    name: 'requests that only read, 32 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      await flood(32, stop, () => client.send('GET', '/api/runs?limit=1'))
      await client.close()
    },
  },
  {
    name: 'profiles of 200 KB, 8 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const instructions = 'x'.repeat(199_000)
      const body = around((gap) => ({ instructions: `${gap} ${instructions}` }))
      // As many as it may have, written again and again.
      const names = Array.from({ length: 50 }, (_, i) => `p${process.pid}-${i}`)
      for (const name of names) await client.send('POST', '/api/profiles', { name })
      await flood(8, stop, (n) => client.send('PUT', `/api/profiles/${names[n % names.length]}`, body(String(n))))
      await client.close()
    },
  },
  {
    name: 'chats with its own agent, 64 at a time, each over a connection of its own',
    async run({ gateway, agent }, told, stop) {
      const client = new Client(gateway, agent.key, told, { once: true })
      await flood(64, stop, () => client.send('POST', agent.path, { message: 'hello' }))
      await client.close()
    },
  },
  {
    name: 'attachments of 4 MiB, 8 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const profile = hostile.profiles.quick
      const data = Buffer.alloc(4 * 1024 * 1024 - 3, 'x').toString('base64')
      // Another file each time: what is there already is not stored again.
      const begin = (n: number): string => Buffer.from(String(n).padStart(9, '0')).toString('base64')
      const body = around((gap) => {
        const file = { mediaType: 'image/png', data: gap + data.slice(begin(0).length) }
        return { profile, prompt: 'x', attachments: [file] }
      })
      await flood(8, stop, (n) => client.send('POST', '/api/runs', body(begin(n))))
      await client.close()
    },
  },
  {
    name: 'conversations of megabytes, 4 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const profile = hostile.profiles.quick
      // Another part of it each time: what repeats is small once it is packed.
      const text = Buffer.from(Array.from({ length: 1_000_003 }, (_, i) => (i * 7919) % 1_000_003).join(' '))
      const talk = async (lane: number): Promise<void> => {
        for (let sessionId: string | undefined, n = lane; !stop.aborted; n += 4) {
          const from = (n * promptBytes) % (text.length - promptBytes)
          const body = around((prompt) => ({ profile, prompt, ...(sessionId ? { sessionId } : {}) }))
          sessionId = (await runThrough(client, body(text.subarray(from, from + promptBytes)))) ?? sessionId
        }
      }
      await Promise.all([0, 1, 2, 3].map(talk))
      await client.close()
    },
  },
  {
    name: 'delegations, 14 at each level',
    // Its calls of tools take turns: only so late has a tree reached every limit, and every level asks at once.
    warmMs: 30_000,
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      // A tree whose calls take turns would go on for a minute.
      stop.addEventListener('abort', () => void client.close(), { once: true })
      const body = { profile: hostile.profiles.delegating, prompt: 'Delegate this.' }
      await flood(4, stop, () => runThrough(client, body))
    },
    judge: judgeDelegations,
  },
  figuresExportsAndLogs,
  ...attacksOnStores,
]

/** What one tenant can do at full effort. */
const together: Attack = {
  name: 'all of these at once, by one tenant',
  meant: /^(2\d\d|400|409|429|opened)$/,
  atLimits: true,
  // What takes its time to begin is under way then. That each path is taken for the first time is part of the attack.
  warmMs: 10_000,
  // A minute of its limits, with the second in which they begin anew. A quarter of one has the collection of a heap in it or has none.
  leastSeconds: 60,
  async prepare(hostile, told) {
    for (const attack of single) await attack.prepare?.(hostile, told)
  },
  async run(hostile, told, stop) {
    await Promise.all(single.map((attack) => attack.run(hostile, told, stop)))
  },
}

export const attacks: readonly Attack[] = [
  ...single,
  together,
  // The last one: its address is throttled for a minute, and all are at one.
  {
    name: 'a key that was revoked, 32 at a time',
    meant: /^(401|429)$/,
    async run(hostile, told, stop) {
      const client = new Client(hostile.conductor, hostile.revoked, told)
      await flood(32, stop, () => client.send('GET', '/api/runs?limit=1'))
      await client.close()
    },
  },
]
