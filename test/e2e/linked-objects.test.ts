import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { chat } from './client.ts'
import { type Cluster, type ClusterOptions, eventually, type Form, forms, startCluster } from './cluster.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly result?: string
  readonly error?: { readonly code: string }
  readonly subTask: { readonly attachments?: readonly { bytes: number; sha256?: string }[] }
  readonly events: readonly Record<string, unknown>[]
}

const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
const imageOf = (cluster: Cluster, message: number, part = 0) =>
  (cluster.model.requests.at(-1)!.body.messages[message]!.content as { image_url: { url: string } }[])[part]!.image_url
    .url
const urlOf = (bytes: Buffer): string => `data:image/png;base64,${bytes.toString('base64')}`

/** A cluster whose roles share a folder of objects. */
async function started(t: TestContext, form: Form, options: ClusterOptions = {}) {
  const dir = await mkdtemp(join(tmpdir(), 'ao-links-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const env = { AGENT_ORC_STORAGE_DIR: join(dir, 'objects'), AGENT_ORC_DATA: dir, ...options.env }
  const cluster = await startCluster(t, form, { ...options, env })
  const finished = async (body: object): Promise<Run> => {
    // A conductor looks at its runners every two seconds.
    const accepted = await eventually('a runner is there', async () => {
      const answer = await cluster.api<Run>('POST', '/api/runs', body)
      return answer.status === 503 ? undefined : answer
    })
    assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
    return eventually('the run ends', async () => {
      const run = (await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)).body
      return ['queued', 'running'].includes(run.status) ? undefined : run
    })
  }
  const get = (path: string, key = cluster.bootstrap) =>
    fetch(`${cluster.conductorUrl}${path}`, { headers: { authorization: `Bearer ${key}` } })
  /** Files of objects in the folder. */
  const objects = async (): Promise<string[]> =>
    (await readdir(join(dir, 'objects'), { recursive: true, withFileTypes: true }).catch(() => []))
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
  return { dir, cluster, finished, get, objects }
}

for (const form of forms) {
  test(`${form}: a large attachment goes by the object store, and the model gets it whole, also in the next run`, async (t) => {
    const { cluster, finished, get, objects } = await started(t, form)
    const agent = await cluster.agent('looker')
    const large = randomBytes(4 * 1024 * 1024 - 3_000)
    const small = randomBytes(1_000)
    const attachments = [
      { mediaType: 'image/png', data: large.toString('base64'), name: 'large.png' },
      { mediaType: 'image/png', data: small.toString('base64') },
    ]
    cluster.model.next({ text: 'A dog.' })
    const run = await finished({ profile: 'looker', prompt: 'Look.', attachments })
    assert.equal(run.status, 'ok', JSON.stringify(run.error))
    assert.deepEqual([imageOf(cluster, 1), imageOf(cluster, 1, 1)], [urlOf(large), urlOf(small)])
    assert.deepEqual(run.subTask.attachments, [
      { mediaType: 'image/png', name: 'large.png', bytes: large.length, sha256: sha256(large) },
      { mediaType: 'image/png', bytes: small.length },
    ])
    const content = await get(`/api/runs/${run.runId}/objects/${sha256(large)}`)
    assert.deepEqual([content.status, content.headers.get('content-type')], [200, 'image/png'])
    assert.ok(large.equals(Buffer.from(await content.arrayBuffer())))

    // The conversation goes on with it, and the same bytes are kept once.
    cluster.model.next({ text: 'Still a dog.' })
    const again = await finished({ profile: 'looker', prompt: 'And?', sessionId: run.sessionId, attachments })
    assert.equal(again.status, 'ok')
    assert.equal(imageOf(cluster, 1), urlOf(large))
    assert.equal((await objects()).length, 1)
    // To the tenant no such key is there.
    const listed = await (await get('/api/storage/objects')).json()
    assert.deepEqual(listed, { objects: [], prefixes: [] })

    // Without base64: through the conductor, and through the gateway for a chat.
    const upload = await fetch(`${cluster.conductorUrl}/api/attachments`, {
      method: 'POST',
      headers: { authorization: `Bearer ${cluster.bootstrap}`, 'content-type': 'image/png' },
      body: large,
    })
    const { id } = (await upload.json()) as { id: string }
    assert.equal(upload.status, 201)
    cluster.model.next({ text: 'Uploaded.' })
    const uploaded = await finished({
      profile: 'looker',
      prompt: 'x',
      attachments: [{ mediaType: 'image/png', upload: id }],
    })
    assert.deepEqual([uploaded.status, imageOf(cluster, 1)], ['ok', urlOf(large)])

    const file = await fetch(`${agent.url}/attachments`, {
      method: 'POST',
      headers: { authorization: `Bearer ${agent.key}`, 'content-type': 'image/png' },
      body: large,
    })
    assert.equal(file.status, 201, await file.clone().text())
    const ofChat = (await file.json()) as { id: string }
    const said = await chat(agent, {
      message: 'And this?',
      attachments: [{ mediaType: 'image/png', upload: ofChat.id }],
    })
    assert.equal(said.status, 200)
    assert.equal(imageOf(cluster, 1), urlOf(large))
    const unknown = await chat(agent, { message: 'x', attachments: [{ mediaType: 'image/png', upload: 'att_none' }] })
    assert.equal(unknown.status, 400)
  })
}

test('four: restarts, other stores, large results of tools, and objects that are not what they were', async (t) => {
  const { cluster, finished, get, objects, dir } = await started(t, 'four', {
    apart: ['sidecar', 'runner'],
    env: { AGENT_ORC_ADMIN_TENANT: 'default' },
  })
  await cluster.agent('looker', { tools: ['storage_get'] })
  const restart = async (part: 'sidecar' | 'runner', env?: Record<string, string>): Promise<void> => {
    await cluster.kill(part)
    await cluster.start(part, env)
  }
  const image = () => {
    const bytes = randomBytes(200_000)
    return { bytes, attachments: [{ mediaType: 'image/png', data: bytes.toString('base64') }] }
  }
  const last = () => JSON.stringify(cluster.model.requests.at(-1)!.body.messages)

  await t.test('a conversation is restored with its large attachments, on another runner as well', async () => {
    const { bytes, attachments } = image()
    const text = Buffer.from(`needle ${'x'.repeat(100_000)}`).toString('base64')
    const notes = { mediaType: 'text/plain', data: text, name: 'notes.txt' }
    cluster.model.next({ text: 'Seen.' }, { text: 'Still.' }, { text: 'And still.' })
    const first = await finished({ profile: 'looker', prompt: 'Look.', attachments: [...attachments, notes] })
    for (const part of ['sidecar', 'runner'] as const) {
      await restart(part)
      const next = await finished({ profile: 'looker', prompt: 'And?', sessionId: first.sessionId })
      assert.deepEqual([next.status, imageOf(cluster, 1)], ['ok', urlOf(bytes)], JSON.stringify(next.error))
      assert.match(last(), /notes\.txt.*needle/)
    }
  })

  await t.test('the model gets the result of a tool whole, the log its beginning and a link', async () => {
    const text = `${'é'.repeat(50_000)}end`
    const put = await fetch(`${cluster.conductorUrl}/api/storage/objects/long.txt`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${cluster.bootstrap}`, 'content-type': 'text/plain' },
      body: text,
    })
    assert.equal(put.status, 201)
    const call = { name: 'storage_get', arguments: { key: 'long.txt' } }
    cluster.model.next({ toolCalls: [call] }, { text: 'Read.' }, { text: 'Again.' })
    const run = await finished({ profile: 'looker', prompt: 'Read.' })
    assert.equal(run.status, 'ok')
    assert.equal(cluster.model.requests.at(-1)!.body.messages.at(-1)!.content, text)
    const event = run.events.find(({ type }) => type === 'tool_result')!
    assert.equal(event['truncated'], true)
    assert.ok(text.startsWith(String(event['content'])) && String(event['content']).length < 5_000)
    const link = event['link'] as { sha256: string; bytes: number }
    assert.deepEqual([link.sha256, link.bytes], [sha256(Buffer.from(text)), Buffer.byteLength(text)])
    const whole = await get(`/api/runs/${run.runId}/objects/${link.sha256}`)
    assert.equal(await whole.text(), text)
    // A restored conversation has it as the model got it.
    await restart('sidecar')
    const next = await finished({ profile: 'looker', prompt: 'And?', sessionId: run.sessionId })
    assert.equal(next.status, 'ok')
    assert.ok(cluster.model.requests.at(-1)!.body.messages.some(({ content }) => content === text))
  })

  await t.test('what an agent writes is on record, counts for all, and keeps to the limits of its tenant', async () => {
    await cluster.agent('writer', { tools: ['storage_put', 'storage_delete'] })
    const put = (key: string, content: string) => ({ name: 'storage_put', arguments: { key, content } })
    const used = async () => {
      const { body } = await cluster.api<{ limits: { name: string; used?: number }[] }>('GET', '/api/limits')
      return body.limits.find(({ name }) => name === 'objects')!.used
    }
    const before = (await used())!
    const remove = { name: 'storage_delete', arguments: { key: 'b' } }
    cluster.model.next({ toolCalls: [put('a', 'x'), put('b', 'y')] }, { toolCalls: [remove] }, { text: 'Done.' })
    const run = await finished({ profile: 'writer', prompt: 'Write.' })
    assert.equal(run.status, 'ok')
    type Entry = { action: string; target: string; actor: { keyId: string; role: string }; outcome?: unknown }
    const entries = await eventually('the writes are on record', async () => {
      const { body } = await cluster.api<Entry[]>('GET', '/api/audit')
      const mine = body.filter(({ actor }) => actor.role === 'agent')
      return mine.length === 3 ? mine : undefined
    })
    assert.deepEqual(entries.map(({ action, target, actor }) => [action, target, actor.keyId]).toSorted(), [
      ['storage.delete', 'b', run.runId],
      ['storage.put', 'a', run.runId],
      ['storage.put', 'b', run.runId],
    ])
    await eventually('they are counted', async () => ((await used()) === before + 1 ? true : undefined))
    const limits = { limits: { objects: before + 1 } }
    assert.equal((await cluster.api('PATCH', '/api/tenants/default', limits)).status, 200)
    cluster.model.next({ toolCalls: [put('c', 'x')] }, { text: 'Full.' })
    const full = await finished({ profile: 'writer', prompt: 'Write.' })
    const result = full.events.find(({ type }) => type === 'tool_result')!
    assert.deepEqual(
      [result['ok'], /limit objects/.test(String(result['content']))],
      [false, true],
      JSON.stringify(result),
    )
    await cluster.api('PATCH', '/api/tenants/default', { limits: { objects: null } })
  })

  await t.test('content that was changed is not passed off as the attachment; what is gone leaves a word', async () => {
    const { attachments } = image()
    const before = new Set(await objects())
    cluster.model.next({ text: 'Seen.' }, { text: 'Without.' })
    const first = await finished({ profile: 'looker', prompt: 'Look.', attachments })
    const path = (await objects()).find((one) => !before.has(one))!
    const bytes = await readFile(path)
    bytes[0]! ^= 0xff
    await writeFile(path, bytes)
    await restart('sidecar')
    const changed = await finished({ profile: 'looker', prompt: 'And?', sessionId: first.sessionId })
    assert.deepEqual([changed.status, changed.error?.code], ['error', 'attachment_unread'])
    await rm(path)
    const gone = await finished({ profile: 'looker', prompt: 'And?', sessionId: first.sessionId })
    assert.equal(gone.status, 'ok', JSON.stringify(gone.error))
    assert.match(last(), /\[image\]/)
  })

  await t.test('a runner without the object store of its conductors is sent the attachments whole', async () => {
    await restart('runner', { AGENT_ORC_STORAGE_DIR: join(dir, 'elsewhere') })
    const { bytes, attachments } = image()
    cluster.model.next({ text: 'Seen.' })
    const run = await finished({ profile: 'looker', prompt: 'Look.', attachments })
    assert.deepEqual([run.status, imageOf(cluster, 1)], ['ok', urlOf(bytes)], JSON.stringify(run.error))
    assert.equal(run.subTask.attachments?.[0]?.sha256, sha256(bytes))
  })
})
