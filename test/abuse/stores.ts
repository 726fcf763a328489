import type { Attack } from './attack.ts'
import { type Client, clientOf, flood } from './client.ts'

const bytes = { 'content-type': 'application/octet-stream', accept: 'application/octet-stream' }
const megabytes = (count: number): Buffer => Buffer.alloc(count * 1024 * 1024, 'x')

/** Files of one size below a path, written and read in turns. */
const files = (name: string, path: string, size: number): Attack => ({
  name,
  async run(hostile, told, stop) {
    const client = clientOf(hostile, told)
    // Files that flow slowly would go on for a minute.
    stop.addEventListener('abort', () => void client.close(), { once: true })
    const file = megabytes(size)
    await flood(8, stop, async (n) => {
      const place = `${path}/file-${n % 4}`
      if (n % 8 < 4) await client.send('PUT', place, file, bytes)
      else await client.send('GET', place, undefined, bytes)
    })
  },
})

/** Sentences that have all words of the bank in common, so that each search finds many. */
const sentence = (n: number): string =>
  Array.from({ length: 60 }, (_, i) => `word${(n * 31 + i * 17) % 400}`).join(' ') + ` of thing ${n}.`

const clientInfo = { name: 'hostile', version: '1' }
/** A beginning, all tools, and a call. */
const messages = [
  { method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo } },
  { method: 'tools/list', params: {} },
  { method: 'tools/call', params: { name: 'a__tool_1', arguments: { path: 'x' } } },
]
const askCatalog = (client: Client, n: number): Promise<string> => {
  const message = { jsonrpc: '2.0', id: n, ...messages[n % messages.length] }
  return client.send('POST', '/mcp/catalog', message, { accept: 'application/json, text/event-stream' })
}

/** On what a tenant keeps beside its runs. */
export const attacksOnStores: readonly Attack[] = [
  files('objects of 8 MiB, 8 at a time', '/api/storage/objects', 8),
  files('files of 64 MiB on the VirtualFS, 8 at a time', '/api/vfs/files/folder', 64),
  {
    name: 'memories, written and searched, 16 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const path = `/api/profiles/${hostile.profiles.quick}/memories`
      await flood(16, stop, (n) => {
        if (n % 2 === 0) return client.send('POST', path, { processedContent: sentence(n) })
        return client.send('GET', `${path}/search?limit=200&minScore=0&q=${encodeURIComponent(sentence(n).repeat(8))}`)
      })
      await client.close()
    },
  },
  {
    name: 'the endpoint of the MCP catalog, 32 at a time',
    async prepare(hostile, told) {
      const client = clientOf(hostile, told)
      for (const name of ['a', 'b', 'c', 'd', 'e'])
        await client.send('POST', '/api/mcp/catalog', { name, url: hostile.mcpServer })
      await client.close()
    },
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      await flood(32, stop, (n) => askCatalog(client, n))
      await client.close()
    },
  },
]
