import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import type { BroadcastChange, BroadcastPage } from '#contracts/broadcast'
import type { RunnerLink } from '#contracts/runner'
import { BroadcastSender } from '../broadcast.ts'

/** A tenant's changes as the database keeps them: the newest of each key. */
function changeLog(pageSize = 10) {
  let revision = 0
  const changes: BroadcastChange[] = []
  return {
    write(key: string): void {
      const old = changes.findIndex((change) => change.key === key)
      if (old >= 0) changes.splice(old, 1)
      changes.push({ revision: ++revision, kind: 'profile', key })
    },
    async page(_tenant: string, after = revision - 1) {
      const all = changes.filter((change) => change.revision > after)
      const page = all.slice(0, pageSize)
      if (page.length === 0) return undefined
      const last = page.at(-1)!.revision
      return { page: { after, revision: last, changes: page }, more: all.length > page.length }
    },
    async *revisions() {
      if (revision > 0) yield { acme: revision }
    },
  }
}

/** A runner that follows as the real one does, and can be away. */
class FakeRunner {
  readonly hash = 'abcdef01'
  revision = 0
  away = false
  readonly pages: BroadcastPage[] = []
  readonly keys = new Set<string>()
  onTake: () => Promise<void> = async () => {}
  async takeBroadcast(_tenant: string, page: BroadcastPage): Promise<number> {
    this.pages.push(page)
    await this.onTake()
    if (this.away) throw new Error('connect ECONNREFUSED')
    if (this.revision < page.after) return this.revision
    for (const { key } of page.changes) this.keys.add(key)
    this.revision = Math.max(this.revision, page.revision)
    return this.revision
  }
  async behind(revisions: Record<string, number>): Promise<string[]> {
    if (this.away) throw new Error('connect ECONNREFUSED')
    return Object.keys(revisions).filter((tenantId) => this.revision < revisions[tenantId]!)
  }
}

function setup(t: TestContext, { everyMs = 3_600_000, pageSize = 10 } = {}) {
  const log = changeLog(pageSize)
  const runner = new FakeRunner()
  const logged: string[] = []
  const stopping = new AbortController()
  t.after(() => stopping.abort())
  const live: ((link: RunnerLink) => void)[] = []
  const link = runner as unknown as RunnerLink
  const note = (...parts: unknown[]) => void logged.push(String(parts.at(-1)))
  const broadcast = new BroadcastSender({
    fleet: { all: () => [link], onLive: (listener) => (live.push(listener), () => void live.splice(0)) },
    log: { info: note, warn: note },
    changes: log,
    everyMs,
    signal: stopping.signal,
  })
  void broadcast.watch()
  return { log, runner, logged, changed: () => broadcast.changed('acme'), live: () => live[0]!(link), stopping }
}

const until = async (check: () => boolean): Promise<void> => {
  while (!check()) await new Promise((resolve) => setTimeout(resolve, 5))
}

test('a runner that is up to date is told a change in one call, before the answer', async (t) => {
  const { log, runner, changed } = setup(t)
  for (const key of ['a', 'b']) {
    log.write(key)
    await changed()
  }
  assert.deepEqual(
    runner.pages.map(({ after, revision, changes }) => [after, revision, changes.length]),
    [
      [0, 1, 1],
      [1, 2, 1],
    ],
  )
})

test('a runner that missed changes is told them from where it is, page by page, and in order', async (t) => {
  const { log, runner, changed } = setup(t, { pageSize: 2 })
  for (const key of ['a', 'b', 'c', 'd', 'a']) log.write(key)
  await changed()
  assert.deepEqual(
    runner.pages.map(({ after, revision }) => [after, revision]),
    [
      [4, 5],
      [0, 3],
      [3, 5],
    ],
  )
  assert.deepEqual([...runner.keys].toSorted(), ['a', 'b', 'c', 'd'])
})

test('what changes while a runner is being told is told before it is done, once', { timeout: 10_000 }, async (t) => {
  const { log, runner, changed } = setup(t)
  const { promise: gate, resolve: open } = Promise.withResolvers<void>()
  runner.onTake = () => gate
  log.write('a')
  const first = changed()
  await until(() => runner.pages.length === 1)
  log.write('b')
  const second = changed()
  log.write('c')
  const third = changed()
  open()
  await Promise.all([first, second, third])
  await until(() => runner.revision === 3)
  // The newest alone, then what the answer said was missing.
  assert.deepEqual(
    runner.pages.map(({ after, revision }) => [after, revision]),
    [
      [0, 1],
      [2, 3],
      [1, 3],
    ],
  )
})

test('a runner that never answers does not hold the answer', { timeout: 10_000 }, async (t) => {
  const { log, runner, changed } = setup(t)
  runner.onTake = () => new Promise(() => {})
  log.write('a')
  await changed()
  assert.equal(runner.revision, 0)
})

test(
  'a runner that was away has everything once it answers again, and both are said once',
  { timeout: 20_000 },
  async (t) => {
    const { log, runner, logged, changed } = setup(t)
    runner.away = true
    for (const key of ['a', 'b', 'c']) {
      log.write(key)
      await changed()
    }
    assert.equal(logged.filter((line) => line.includes('lacks')).length, 1)
    runner.away = false
    await until(() => logged.some((line) => line.includes('again')))
    assert.deepEqual([...runner.keys], ['a', 'b', 'c'])
    assert.equal(logged.length, 2)
  },
)

test('a runner that becomes live is told everything, without a change', { timeout: 10_000 }, async (t) => {
  const { log, runner, live } = setup(t)
  for (const key of ['a', 'b', 'c']) log.write(key)
  live()
  await until(() => runner.revision === 3)
  assert.equal(runner.keys.size, 3)
})

test('what another conductor committed and did not tell is told at the next look', { timeout: 10_000 }, async (t) => {
  const { log, runner } = setup(t, { everyMs: 20 })
  log.write('a')
  await until(() => runner.revision === 1)
  log.write('b')
  await until(() => runner.revision === 2)
})

test('a runner that takes nothing is given up until the next look', { timeout: 10_000 }, async (t) => {
  const { log, runner, logged, changed } = setup(t)
  runner.takeBroadcast = async (_tenant, page) => (runner.pages.push(page), 0)
  for (const key of ['a', 'b']) log.write(key)
  await changed()
  await until(() => logged.length === 1)
  assert.match(logged[0]!, /lacks/)
  assert.ok(runner.pages.length <= 4)
})

/** One look at a runner that lacks changes of three tenants. Says of which tenants it was sent pages. */
async function lookAtThree(
  t: TestContext,
  { read = () => {}, take = () => {} }: { read?: (tenantId: string) => void; take?: (tenantId: string) => void },
): Promise<string[]> {
  const sent: string[] = []
  const stopping = new AbortController()
  t.after(() => stopping.abort())
  const { promise: over, resolve: isOver } = Promise.withResolvers<void>()
  const live: ((link: RunnerLink) => void)[] = []
  const link = {
    hash: 'abcdef01',
    behind: async (revisions: object) => Object.keys(revisions),
    async takeBroadcast(tenantId: string, { revision }: BroadcastPage) {
      sent.push(tenantId)
      take(tenantId)
      return revision
    },
  } as unknown as RunnerLink
  const broadcast = new BroadcastSender({
    fleet: { all: () => [], onLive: (listener) => (live.push(listener), () => {}) },
    log: { info() {}, warn() {} },
    changes: {
      async page(tenantId) {
        read(tenantId)
        return { page: { after: 0, revision: 1, changes: [] }, more: false }
      },
      async *revisions() {
        yield { acme: 1, globex: 1, initech: 1 }
        isOver()
      },
    },
    everyMs: 3_600_000,
    signal: stopping.signal,
  })
  void broadcast.watch()
  live[0]!(link)
  await over
  return sent
}

test('a tenant whose changes cannot be read, or that the runner refuses, keeps no other tenant from it', async (t) => {
  const fails = (code: string, status: number) => (tenantId: string) => {
    if (tenantId === 'acme') throw new AppError(code, status)
  }
  const all = ['acme', 'globex', 'initech']
  assert.deepEqual(await lookAtThree(t, {}), all)
  assert.deepEqual(await lookAtThree(t, { read: fails('database_busy', 503) }), ['globex', 'initech'])
  assert.deepEqual(await lookAtThree(t, { take: fails('invalid_request', 400) }), all)
  assert.deepEqual(await lookAtThree(t, { take: fails('runner_unreachable', 503) }), ['acme'], 'it is asked no more')
})

test('a role without runners has nobody to tell', async () => {
  const signal = new AbortController().signal
  const log = { info: () => assert.fail(), warn: () => assert.fail() }
  const broadcast = new BroadcastSender({ fleet: undefined, log, changes: changeLog(), everyMs: 1_000, signal })
  await broadcast.changed('acme')
  await broadcast.watch()
})

test('a stopped conductor tells no more', async (t) => {
  const { log, runner, changed, stopping } = setup(t)
  log.write('a')
  stopping.abort()
  await changed()
  assert.equal(runner.pages.length, 0)
})
