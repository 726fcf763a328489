import { isUtf8 } from 'node:buffer'
import { buffer } from 'node:stream/consumers'
import { definePlugin, maybe } from '#kernel'
import { Database, presentDatabase } from '#contracts/database'
import { defaultLimits } from '#contracts/limits'
import { maxKeyBytes, objectErrors, ObjectStore } from '#contracts/object-store'
import { type ObjectWrite, WrittenObjects, writtenStage } from '#contracts/object-writes'
import { type PlatformTool, PlatformTools, type ToolContext, type ToolResult } from '#contracts/tools'
import { mostShownBytes, wholeCharacters } from '#kit'

/** The tools with which agents use their tenant's object store. The runner reaches the store directly. Without a store there are no tools. */
export default definePlugin({
  name: 'storage-tools',
  errors: objectErrors,
  requires: { store: ObjectStore, database: maybe(Database) },
  provides: { tools: PlatformTools, written: WrittenObjects },
  async setup({ deps: { store, database } }) {
    const written = new WriteLedger()
    // With a database the store has counted each write already.
    const counted = presentDatabase(database) !== undefined
    const tools = store.backend === undefined ? [] : storageTools(store, { written, counted })
    return { tools: Object.fromEntries(tools.map((tool) => [tool.name, tool])), written }
  },
})

const mostListed = 200

const key = { type: 'string', minLength: 1, maxLength: maxKeyBytes, description: 'For example reports/2026/may.md.' }
const ok = (content: string): ToolResult => ({ ok: true, content })
const failed = (content: string): ToolResult => ({ ok: false, content })

/** Every tool acts for the tenant of its session. The runner sets that tenant, so no model can choose another one. */
export const storageTools = (store: ObjectStore, record: WriteRecord): PlatformTool[] => [
  getTool(store),
  putTool(store, record),
  listTool(store),
  deleteTool(store, record),
]

interface WriteRecord {
  readonly written: WrittenObjects
  /** The store has already counted the write for all processes. */
  readonly counted: boolean
}

/** Records a write for the tenant's audit log, so that a conductor can fetch it. With `counted`, it is recorded without bytes and objects. */
function record({ written, counted }: WriteRecord, context: ToolContext, write: Omit<ObjectWrite, 'n'>): void {
  const { tenantId, runId, report } = context
  if (!report) return
  written.note({ tenantId, runId }, counted ? { ...write, bytes: 0, objects: 0 } : write)
  report({ type: 'progress', stage: writtenStage })
}

const getTool = (store: ObjectStore): PlatformTool => ({
  name: 'storage_get',
  description: 'Reads an object of the object store as text. A long one is read in parts, by `offset`.',
  inputSchema: {
    type: 'object',
    properties: { key, offset: { type: 'integer', minimum: 0, default: 0, description: 'The first byte to read.' } },
    required: ['key'],
    additionalProperties: false,
  },
  async execute(input, { tenantId }) {
    const found = await store.open(tenantId, String(input['key']))
    if (!found) return failed(`There is no object '${String(input['key'])}'.`)
    const { bytes, contentType } = found.info
    const from = Number(input['offset'])
    if (from >= bytes) {
      await found.close()
      return bytes === 0 ? ok('') : failed(`The object has ${bytes} bytes, so there is nothing at ${from}.`)
    }
    const to = Math.min(from + mostShownBytes, bytes) - 1
    const part = await buffer(await found.read({ from, to }))
    const data = to + 1 < bytes ? wholeCharacters(part) : part
    if (!isUtf8(data)) return failed(`The object is ${bytes} bytes of ${contentType}, which is no text.`)
    const next = from + data.length
    return ok(
      `${data.toString('utf8')}${next < bytes ? `\n[Bytes ${from} to ${next} of ${bytes}; go on with offset ${next}.]` : ''}`,
    )
  },
})

const putTool = (store: ObjectStore, writes: WriteRecord): PlatformTool => ({
  name: 'storage_put',
  description: 'Writes an object into the object store, in place of the one of that key if there is one.',
  inputSchema: {
    type: 'object',
    properties: {
      key,
      content: { type: 'string', maxLength: 4 * 1024 * 1024, description: 'The text of the object.' },
      contentType: { type: 'string', minLength: 1, maxLength: 255, default: 'text/plain; charset=utf-8' },
      overwrite: { type: 'boolean', default: true, description: 'False: fails where there is one already.' },
    },
    required: ['key', 'content'],
    additionalProperties: false,
  },
  async execute(input, context) {
    const { tenantId, limits } = context
    const data = Buffer.from(String(input['content']))
    const {
      info,
      created,
      replaced = 0,
    } = await store.put(tenantId, String(input['key']), {
      body: (async function* () {
        yield data
      })(),
      bytes: data.length,
      contentType: String(input['contentType']),
      limits: limits && { ...defaultLimits, ...limits },
      ...(input['overwrite'] === false ? { when: { ifNoneMatch: '*' as const } } : {}),
    })
    record(writes, context, {
      action: 'storage.put',
      key: info.key,
      bytes: info.bytes - replaced,
      objects: created ? 1 : 0,
    })
    return ok(`'${info.key}' is ${created ? 'stored' : 'replaced'}: ${info.bytes} bytes.`)
  },
})

const listTool = (store: ObjectStore): PlatformTool => ({
  name: 'storage_list',
  description: `Lists objects of the object store by their keys, ${mostListed} at a time.`,
  inputSchema: {
    type: 'object',
    properties: {
      prefix: { type: 'string', maxLength: maxKeyBytes, default: '', description: 'How the keys begin.' },
      after: { type: 'string', maxLength: maxKeyBytes, default: '', description: 'The last key of the list before.' },
    },
    additionalProperties: false,
  },
  async execute(input, { tenantId }) {
    const query = { prefix: String(input['prefix']), after: String(input['after']), limit: mostListed }
    const { objects, next } = await store.list(tenantId, query)
    if (objects.length === 0) return ok('There are no such objects.')
    const lines = objects.map((one) => `${one.key} (${one.bytes} bytes, ${one.contentType}, ${one.updatedAt})`)
    return ok(
      [...lines, ...(next === undefined ? [] : [`[There are more, after '${objects.at(-1)!.key}'.]`])].join('\n'),
    )
  },
})

const deleteTool = (store: ObjectStore, writes: WriteRecord): PlatformTool => ({
  name: 'storage_delete',
  description: 'Deletes one object of the object store.',
  inputSchema: { type: 'object', properties: { key }, required: ['key'], additionalProperties: false },
  async execute(input, context) {
    const { tenantId } = context
    const wanted = String(input['key'])
    const found = await store.open(tenantId, wanted)
    await found?.close()
    if (!found || !(await store.remove(tenantId, wanted))) return failed(`There is no object '${wanted}'.`)
    record(writes, context, { action: 'storage.delete', key: wanted, bytes: -found.info.bytes, objects: -1 })
    return ok(`'${wanted}' is deleted.`)
  },
})

/** The most writes kept until a conductor fetches them. With more, the oldest runs are dropped, and the nightly count corrects the usage. */
const mostKept = 20_000
/** The most writes in one answer. */
const mostAtOnce = 500

/** What agents of this runner wrote, by run, oldest run first. */
class WriteLedger implements WrittenObjects {
  readonly #runs = new Map<string, ObjectWrite[]>()
  #kept = 0
  // Numbers begin with the current time in microseconds, so that a restarted runner continues above the numbers of its former process.
  #next = Date.now() * 1_000

  note({ tenantId, runId }: Parameters<WrittenObjects['note']>[0], write: Omit<ObjectWrite, 'n'>): void {
    const key = keyOf(tenantId, runId)
    const writes = this.#runs.get(key) ?? []
    writes.push({ n: this.#next++, ...write })
    this.#runs.set(key, writes)
    this.#kept++
    for (const oldest of this.#runs.keys()) {
      if (this.#kept <= mostKept) return
      this.#drop(oldest)
    }
  }
  of({ tenantId, runId }: Parameters<WrittenObjects['of']>[0], after: number): readonly ObjectWrite[] {
    const key = keyOf(tenantId, runId)
    const left = (this.#runs.get(key) ?? []).filter(({ n }) => n > after)
    this.#drop(key)
    if (left.length === 0) return []
    this.#runs.set(key, left)
    this.#kept += left.length
    return left.slice(0, mostAtOnce)
  }
  #drop(key: string): void {
    this.#kept -= this.#runs.get(key)?.length ?? 0
    this.#runs.delete(key)
  }
}

const keyOf = (tenantId: string, runId: string): string => `${tenantId}\n${runId}`
