import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { test } from 'node:test'
import { type Cluster, eventually, startCluster } from '../e2e/cluster.ts'
import { chatStream } from '../e2e/client.ts'

const skip = existsSync('/proc/self/fd') ? false : 'the sockets of another process are counted in /proc'
const visitors = 2_000
const atOnce = 50
/** Connections to the database and to peers that the process may still open, and keep, however many visitors come: 5,000 leave as many as 2,000. */
const keptSockets = 20

const title = 'S2: 2,000 clients that connect and go leave no socket and no timer behind, and the run goes on'
test(title, { skip }, async (t) => {
  const cluster = await startCluster(t, 'single', { apart: ['gateway'] })
  const agent = await cluster.agent('visited')
  cluster.model.next({ text: 'one two three', deltas: 3, hangAfter: 2 })
  const stream = await chatStream(agent, { message: 'go' })
  const publicRunId = stream.response.headers.get('x-public-run-id')!
  await stream.frames.next()
  const url = new URL(agent.url)
  // On a bare socket, which is closed when it is destroyed: a client library keeps some for later.
  const visit = async (): Promise<void> => {
    const socket = connect(Number(url.port), url.hostname)
    socket.write(
      `GET ${url.pathname}/runs/${publicRunId}/stream HTTP/1.1\r\nhost: ${url.host}\r\nauthorization: Bearer ${agent.key}\r\n\r\n`,
    )
    let seen = ''
    while (!seen.includes('event: delta')) seen += String((await once(socket, 'data'))[0])
    socket.destroy()
  }
  // The first visitors fill pools and caches that are kept; those of each kind of work fill by and by.
  for (let batch = 0; batch < 20; batch++) await Promise.all(Array.from({ length: atOnce }, visit))
  await eventually('its jobs have begun, which have timers and connections of their own', async () =>
    /^agent_orc_jobs_up 1$/m.test(await metrics(cluster)),
  )
  const before = await eventually('the first visitors are gone', () => resting(cluster))
  for (let i = 0; i < visitors; i += atOnce) await Promise.all(Array.from({ length: atOnce }, visit))
  let last = before
  const left = (): boolean => last.sockets > before.sockets + keptSockets || last.timers > before.timers + 3
  for (let attempt = 0; attempt < 50; attempt++) {
    last = (await resting(cluster)) ?? last
    if (attempt > 0 && !left()) break
  }
  assert.equal(left(), false, `before ${JSON.stringify(before)}, after ${JSON.stringify(last)}`)
  assert.equal((await cluster.api<{ status: string }[]>('GET', '/api/runs')).body[0]!.status, 'running')
  await visit()
  stream.leave()
})

interface Counts {
  readonly sockets: number
  readonly timers: number
}

/** What the process has open, once it stays the same for a moment and so nothing is under way. */
async function resting(cluster: Cluster): Promise<Counts | undefined> {
  const first = await count(cluster)
  await new Promise((resolve) => setTimeout(resolve, 100))
  const second = await count(cluster)
  return Math.abs(first.sockets - second.sockets) <= 1 ? second : undefined
}

async function count(cluster: Cluster): Promise<Counts> {
  const timers = /^nodejs_active_resources\{type="Timeout"\} (\d+)/m.exec(await metrics(cluster))
  assert.ok(timers, 'the process counts its timers')
  return { sockets: readdirSync(`/proc/${cluster.pid('gateway')}/fd`).length, timers: Number(timers[1]) }
}

const metrics = async (cluster: Cluster): Promise<string> =>
  (await fetch(`${cluster.operationsUrl('gateway')}/metrics`)).text()
