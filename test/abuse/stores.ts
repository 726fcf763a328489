import type { Attack, Hostile, Told } from './attack.ts'
import { type Client, clientOf, flood } from './client.ts'

const bytes = { 'content-type': 'application/octet-stream', accept: 'application/octet-stream' }
const megabytes = (count: number): Buffer => Buffer.alloc(count * 1024 * 1024, 'x')

const kibibytes = (count: number): Buffer => Buffer.alloc(count * 1024, 'word of a line that is no other\n')
/** So many writes, each once: two at a time, so that none is refused because others of their size wait. */
async function each(count: number, write: (n: number) => Promise<unknown>): Promise<void> {
  let n = 0
  const lane = async (): Promise<void> => {
    while (n < count) await write(n++)
  }
  await Promise.all(Array.from({ length: 2 }, lane))
}

/** Stores of files: what is in them, and how they are asked. */
interface Files {
  readonly name: string
  /** Of a file `below/file-n`. */
  readonly path: string
  /** Requests that read, of the whole folder. */
  readonly lists: readonly string[]
  /** MiB of each file that is written meanwhile. */
  readonly size: number
}

/** Files that are there are read, listed and searched, while large ones are written. */
const files = ({ name, path, lists, size }: Files): Attack => ({
  name,
  async prepare(hostile, told) {
    const client = clientOf(hostile, told)
    // Most of the writes of a minute, of which some are left: few that are long, and many to go through.
    await each(200, (n) => client.send('PUT', `${path}/below/file-${n}`, kibibytes(n < 12 ? 256 : 2), bytes))
    await client.close()
  },
  async run(hostile, told, stop) {
    const client = clientOf(hostile, told)
    // Files that flow slowly would go on for a minute.
    stop.addEventListener('abort', () => void client.close(), { once: true })
    const file = megabytes(size)
    await flood(8, stop, async (n) => {
      if (n % 24 === 0) await client.send('PUT', `${path}/file-${n % 4}`, file, bytes)
      else if (n % 2 === 0) await client.send('GET', lists[(n / 2) % lists.length]!)
      else await client.send('GET', `${path}/below/file-${n % 12}`, undefined, n % 4 === 1 ? bytes : {})
    })
  },
})

/** A skill of 400 files in one folder, as forms send it, for a name and number that stand for `gap`. */
const folder = (gap: string): string => {
  const name = `skill-${gap}`
  const head = `---\nname: ${name}\ndescription: One of many that are imported.\n---\n`
  const parts = Array.from({ length: 400 }, (_, i) => {
    const [file, text] =
      i === 0 ? ['SKILL.md', `${head}Do ${gap}.`] : [`docs/part-${i}.md`, `${gap} ${'word '.repeat(200)}`]
    return `--b\r\nContent-Disposition: form-data; name="files"; filename="${name}/${file}"\r\nContent-Type: text/markdown\r\n\r\n${text}\r\n`
  })
  return `${parts.join('')}--b--\r\n`
}
const form = { 'content-type': 'multipart/form-data; boundary=b' }

const toolkits = ['a', 'b', 'c', 'd', 'e']
async function enterCatalog(hostile: Hostile, told: Told): Promise<void> {
  const client = clientOf(hostile, told)
  for (const name of toolkits) await client.send('POST', '/api/mcp/catalog', { name, url: hostile.mcpServer })
  await client.close()
}

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
  files({
    name: 'objects: 200 read and listed, and others of 8 MiB, 8 at a time',
    path: '/api/storage/objects',
    lists: ['/api/storage/objects?limit=1000', '/api/storage/objects?prefix=below/&delimiter=/&limit=1000'],
    size: 8,
  }),
  files({
    name: 'files on the VirtualFS: 200 read, listed and searched, and others of 64 MiB, 8 at a time',
    path: '/api/vfs/files/folder',
    lists: [
      '/api/vfs/list/folder/?recursive=true&limit=1000',
      '/api/vfs/search?q=nowhere',
      '/api/vfs/list/folder/below?limit=1000',
      '/api/vfs/search?q=no+other&in=text&limit=200',
    ],
    size: 64,
  }),
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
    prepare: enterCatalog,
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      await flood(32, stop, (n) => askCatalog(client, n))
      await client.close()
    },
  },
  {
    name: 'apps, listed, asked for their tools and called, 16 at a time',
    prepare: enterCatalog,
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      await flood(16, stop, (n) => {
        const toolkit = toolkits[n % toolkits.length]!
        if (n % 3 === 0) return client.send('GET', '/api/apps?limit=100')
        if (n % 3 === 1) return client.send('GET', `/api/apps/${toolkit}/tools`)
        return client.send('POST', `/api/apps/${toolkit}/call`, {
          name: 'tool_1',
          arguments: { path: 'x'.repeat(9_000) },
        })
      })
      await client.close()
    },
  },
  {
    name: 'workflows: maps of 200 templates, and agents that hang, 16 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const items = Array.from({ length: 200 }, (_, i) => i)
      const map = { id: 'm', type: 'map', items, node: { type: 'condition', if: 'item % 7 == 0' } }
      const waits = { id: 'w', type: 'agent', profile: hostile.profiles.hanging, prompt: '{{ nodes.m.output | size }}' }
      await flood(16, stop, async (n) => {
        const nodes = [map, { ...waits, dependsOn: ['m'] }]
        if (n % 8 !== 7) return client.send('POST', '/api/workflows/runs', { definition: { name: `w${n}`, nodes } })
        return client.send('GET', '/api/workflows/runs?limit=100')
      })
      await client.close()
    },
  },
  {
    name: 'secrets and schedules, written and listed, 16 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      for (let n = 0; n < 20; n++) await client.send('POST', '/api/secrets', { name: `s${n}`, value: 'first' })
      // Each is due every second.
      const schedule = { profile: hostile.profiles.hanging, prompt: 'x', cron: '* * * * * *', overlap: 'allow' }
      await flood(16, stop, (n) => {
        if (n % 4 === 0) return client.send('PUT', `/api/secrets/s${n % 20}`, { value: `${n} `.repeat(4_000) })
        if (n % 4 === 1) return client.send('POST', '/api/workflows/schedules', schedule)
        return client.send('GET', n % 4 === 2 ? '/api/secrets' : '/api/audit?limit=200')
      })
      await client.close()
    },
  },
  {
    name: 'imports of skills with 400 files, 8 at a time',
    async run(hostile, told, stop) {
      const client = clientOf(hostile, told)
      const text = folder('(gap)')
      await flood(8, stop, async (n) => {
        const body = Buffer.from(text.replaceAll('(gap)', String(n)))
        const tried = await client.send('POST', '/api/skills/import', body, form)
        const { stagingId } = (tried === '' ? {} : JSON.parse(tried)) as { stagingId?: string }
        if (stagingId !== undefined) await client.send('POST', `/api/skills/import/${stagingId}/commit`)
      })
      await client.close()
    },
  },
]
