import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import type { TestContext } from 'node:test'

/** One address that leads to the newest process, as a load balancer has. */
export async function frontDoor(t: TestContext): Promise<{ readonly url: string; target: string }> {
  const door = { url: '', target: '' }
  const server = createServer((client) => {
    const { hostname, port } = new URL(door.target)
    const upstream = connect(Number(port), hostname)
    client.pipe(upstream).pipe(client)
    client.on('error', () => upstream.destroy()).on('close', () => upstream.destroy())
    upstream.on('error', () => client.destroy()).on('close', () => client.destroy())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => void server.close())
  door.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return door
}
