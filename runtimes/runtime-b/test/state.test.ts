import assert from 'node:assert/strict'
import { appendFile, glob, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { terminalOf } from '#testing'
import { pack, unpack } from '#kit/archive'
import { Homes } from '../homes.ts'
import { conversation, skip, stage } from './support.ts'

const threadId = '01a1ff3d-093f-7662-8da4-a07f58b5c63a'
const rolloutName = (id = threadId): string => `2026/11/21/rollout-2026-11-21T17-52-32-${id}.jsonl`
const meta = (id = threadId): string => `${JSON.stringify({ type: 'session_meta', payload: { id } })}\n`

async function folder(t: Pick<TestContext, 'after'>): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(path, { recursive: true, force: true }))
  return path
}

/** A bundle with these files. */
async function bundle(t: Pick<TestContext, 'after'>, files: Readonly<Record<string, string>>): Promise<Uint8Array> {
  const path = await folder(t)
  for (const [name, content] of Object.entries(files)) {
    await mkdir(dirname(join(path, name)), { recursive: true })
    await writeFile(join(path, name), content)
  }
  return pack(path, Object.keys(files))
}

function homesFor(t: Pick<TestContext, 'after'>, ...limits: ConstructorParameters<typeof Homes>) {
  const homes = new Homes(...limits)
  t.after(() => homes.close())
  return homes
}

const runOf = (sessionId: string, runId = 'r', tenantId = 'acme') => ({ tenantId, sessionId, runId })

/** What a run does in its home: it adds to the conversation. */
async function write(home: { readonly folder: string }, text: string, id = threadId): Promise<void> {
  const path = join(home.folder, 'sessions', rolloutName(id))
  await mkdir(dirname(path), { recursive: true })
  await appendFile(path, text)
}

test('a bundle is a gzip tar of the one file that holds the conversation', { skip }, async (t) => {
  const { run, runtime } = await stage(t)
  await run('hi', { sessionId: 's' })
  const { bytes, contentType, runtimeSessionId } = (await runtime.exportState!('s'))!
  assert.equal(contentType, 'application/gzip')
  const tar = gunzipSync(bytes)
  const names = [...tar.toString('latin1').matchAll(/(\S+?)\0+[0-7 ]+\0/g)].map(([, name]) => name!)
  const files = names.filter((name) => name.endsWith('.jsonl') || name.includes('/'))
  assert.equal(files.length, 1)
  assert.match(files[0]!, new RegExp(`^\\d{4}/\\d{2}/\\d{2}/rollout-[\\dT-]+-${runtimeSessionId}\\.jsonl$`))
})

test('a bundle has no key, no address and no folder that the next host would need', { skip }, async (t) => {
  const here = await stage(t)
  await here.run('remember Marmalade', { sessionId: 's', profile: { instructions: 'Be brief.' } })
  const there = await stage(t)
  const state = (await here.runtime.exportState!('s'))!
  assert.doesNotMatch(gunzipSync(state.bytes).toString('utf8'), /Bearer|secret|127\.0\.0\.1/)
  await here.runtime.forget!('s')
  await there.runtime.hydrate!('s', state)
  assert.equal(there.runtime.has!('s'), true)
  const events = await there.run('what was it?', {
    sessionId: 's',
    resume: true,
    runtimeSessionId: state.runtimeSessionId!,
  })
  assert.equal(terminalOf(events).type, 'result')
  assert.equal(
    events.some(({ type }) => type === 'session_init'),
    false,
    'it is the same conversation',
  )
  const told = conversation(there.models.requests[0]!).filter((line) => !line.startsWith('developer'))
  assert.deepEqual(told, ['user: remember Marmalade', 'assistant: fine', 'user: what was it?'])
})

test('a run that is tried again finds nothing of its former attempt', { skip }, async (t) => {
  const { run, models } = await stage(t)
  await run('first', { sessionId: 's', runId: 'r1' })
  models.next({ text: 'half of it', resetAfter: 1 })
  await run('second', { sessionId: 's', runId: 'r2' })
  await run('second', { sessionId: 's', runId: 'r2', attempt: 2 })
  assert.deepEqual(conversation(models.requests.at(-1)!), ['user: first', 'assistant: fine', 'user: second'])
  await run('third', { sessionId: 's', runId: 'r3', attempt: 2 })
  assert.deepEqual(conversation(models.requests.at(-1)!).slice(-3), ['user: second', 'assistant: fine', 'user: third'])
})

test('a conversation that was torn in the middle of a line goes on in front of it', { skip }, async (t) => {
  const here = await stage(t)
  await here.run('first', { sessionId: 's' })
  const state = (await here.runtime.exportState!('s'))!
  const path = await folder(t)
  await unpack(state.bytes, join(path, 'x'), () => true)
  const [name] = await Array.fromAsync(glob('**/*.jsonl', { cwd: join(path, 'x') }))
  await appendFile(join(path, 'x', name!), '{"timestamp":"2026-11-21T17:52:32.649Z","type":"response_item","payl')
  await here.runtime.hydrate!('s', { ...state, bytes: await pack(join(path, 'x'), [name!]) })
  for (const prompt of ['second', 'third'])
    assert.equal(terminalOf(await here.run(prompt, { sessionId: 's' })).type, 'result')
  const told = conversation(here.models.requests.at(-1)!)
  assert.deepEqual(told, ['user: first', 'assistant: fine', 'user: second', 'assistant: fine', 'user: third'])
})

test('nothing of a run stays in the folder of its session but the conversation', async (t) => {
  const homes = homesFor(t)
  const home = await homes.enter(runOf('s'))
  await write(home, meta())
  await mkdir(join(home.folder, 'tmp'))
  for (const name of ['model.json', 'state_5.sqlite', 'tmp/x']) await writeFile(join(home.folder, name), 'x')
  await homes.leave('s', home, true)
  assert.deepEqual(await readdir(home.folder), ['sessions'])
})

const wrong: readonly (readonly [string, Readonly<Record<string, string>>])[] = [
  ['no conversation', { 'notes.txt': 'x' }],
  ['a file beside the conversation', { [rolloutName()]: meta(), 'config.toml': 'x' }],
  ['two conversations', { [rolloutName()]: meta(), [rolloutName('01a1ff3d-093f-7662-8da4-a07f58b5c63b')]: meta() }],
  ['a conversation of another id than its name', { [rolloutName()]: meta('01a1ff3d-093f-7662-8da4-a07f58b5c63b') }],
  ['a file that is no conversation', { [rolloutName()]: 'hello\n' }],
  ['a file that begins with something else', { [rolloutName()]: '{"type":"response_item"}\n' }],
  ['an empty file', { [rolloutName()]: '' }],
  ['a torn first line', { [rolloutName()]: meta().slice(0, -1) }],
]
for (const [what, files] of wrong) {
  test(`a bundle with ${what} is refused, and what there was stays`, async (t) => {
    const homes = homesFor(t)
    await assert.rejects(homes.hydrate('s', await bundle(t, files)), { code: 'invalid_state', status: 400 })
    assert.equal(homes.has('s'), false)
    await homes.hydrate('s', await bundle(t, { [rolloutName()]: meta() }))
    await assert.rejects(homes.hydrate('s', await bundle(t, files)), { code: 'invalid_state' })
    assert.equal((await homes.exportState('s'))?.runtimeSessionId, threadId)
  })
}

test('a turn that nobody wants to keep is taken back, be it the first or a later one', async (t) => {
  const homes = homesFor(t)
  const first = await homes.enter(runOf('s', 'r1'))
  await write(first, meta())
  await homes.leave('s', first, false)
  assert.equal(homes.has('s'), false)
  const again = await homes.enter(runOf('s', 'r2'))
  assert.equal(again.threadId, undefined)
  await write(again, meta())
  await homes.leave('s', again, true)
  const later = await homes.enter(runOf('s', 'r3'))
  assert.equal(later.threadId, threadId)
  await write(later, '{"type":"response_item"}\n')
  await homes.leave('s', later, false)
  assert.equal(await readFile(join(later.folder, 'sessions', rolloutName()), 'utf8'), meta())
})

/** Homes in which a tenant may use sessions, and a conductor may fetch what they hold. */
function used(t: Pick<TestContext, 'after'>, ...limits: ConstructorParameters<typeof Homes>) {
  const homes = homesFor(t, ...limits)
  /** Begins a run, which writes this much. Resolves to its end. */
  const begin = async (sessionId: string, { tenantId = 'acme', bytes = 0 } = {}): Promise<() => Promise<void>> => {
    const home = await homes.enter(runOf(sessionId, 'r', tenantId))
    await write(home, `${meta()}${'x'.repeat(bytes)}\n`)
    return () => homes.leave(sessionId, home, true)
  }
  const use = async (...run: Parameters<typeof begin>): Promise<void> => (await begin(...run))()
  const fetched = async (...run: Parameters<typeof begin>): Promise<void> => {
    await use(...run)
    await homes.exportState(run[0])
  }
  const there = (...ids: string[]): string[] => ids.filter((id) => homes.has(id))
  return { begin, use, fetched, there }
}

test('the least recently used conversations go first, and none that a run is in', async (t) => {
  const { begin, fetched, there } = used(t, { sessions: 2, totalBytes: 10_000 })
  for (const sessionId of ['a', 'b', 'a', 'c']) await fetched(sessionId)
  assert.deepEqual(there('a', 'b', 'c'), ['a', 'c'])
  const end = await begin('a', { bytes: 11_000 })
  for (const sessionId of ['d', 'e']) await fetched(sessionId)
  assert.deepEqual(there('a', 'c', 'd', 'e'), ['a', 'e'])
  await end()
  assert.deepEqual(there('a', 'e'), ['a'], 'the newest stays when it is too large by itself')
})

test('a conversation that nobody has fetched stays, until there is twice as much as may be', async (t) => {
  const { begin, use, fetched, there } = used(t, { sessions: 9, totalBytes: 10_000 })
  await use('large', { tenantId: 'b', bytes: 10_000 })
  const end = await begin('large', { tenantId: 'b' })
  for (const sessionId of ['old', 'new']) await use(sessionId)
  await fetched('fetched')
  await use('newer')
  assert.deepEqual(there('old', 'new', 'fetched', 'newer'), ['old', 'new', 'fetched', 'newer'])
  await use('larger', { bytes: 10_000 })
  assert.deepEqual(there('large', 'old', 'new', 'fetched', 'newer', 'larger'), ['large', 'larger'])
  await end()
})

test('a copy from before the last run is none', async (t) => {
  const { use, fetched, there } = used(t, { sessions: 1, totalBytes: 10_000 })
  await fetched('a')
  await use('a')
  await use('b')
  assert.deepEqual(there('a', 'b'), ['a', 'b'])
})

test('the tenant that holds the most gives up its conversations first', async (t) => {
  const { fetched, there } = used(t, { sessions: 3, totalBytes: 10_000 })
  await fetched('victim', { tenantId: 'b' })
  for (const sessionId of ['a1', 'a2', 'a3']) await fetched(sessionId)
  assert.deepEqual(there('victim', 'a1', 'a2', 'a3'), ['victim', 'a2', 'a3'])
  await fetched('victim', { tenantId: 'b', bytes: 100 })
  await fetched('a4', { bytes: 10_000 })
  assert.deepEqual(there('victim', 'a2', 'a3', 'a4'), ['victim', 'a4'])
})

test('a tenant whose runs are in half of what may be kept has to wait with further ones', async (t) => {
  const { begin, use, there } = used(t, { sessions: 9, totalBytes: 10_000 })
  await use('large', { bytes: 6_000 })
  const end = await begin('large')
  await assert.rejects(use('a'), { code: 'runtime_busy', retryable: true })
  await use('b', { tenantId: 'b' })
  await end()
  await use('a')
  assert.deepEqual(there('a', 'b', 'large'), ['a', 'b', 'large'])
})

test('a session that is forgotten while its run ends stays forgotten', async (t) => {
  const homes = homesFor(t)
  const home = await homes.enter(runOf('s'))
  await homes.forget('s')
  await write(home, meta())
  await homes.leave('s', home, true)
  assert.equal(homes.has('s'), false)
  assert.equal(await homes.exportState('s'), undefined)
})
