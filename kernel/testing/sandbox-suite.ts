import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { isAppError } from '#kernel'
import type { LaunchOrder, SandboxProvider } from '#contracts/sandbox'
import { workerProtocol, workerVariables } from '#contracts/wire/worker'
import { type Launches, openLaunches, testOrder, until } from './sandbox-launches.ts'

/**
 * The parts of the suite that some substrates cannot pass. `environment`: its workers have only the ordered variables. `pause`: it can be paused.
 * `copies`: the worker may start processes. `template`: at launch it knows which templates exist. `exit`: it notices a worker that ends.
 */
export type SandboxPart = 'environment' | 'pause' | 'copies' | 'template' | 'exit'

export interface SandboxSuiteOptions {
  /** Fields that override those of every order, e.g. the template to start from. The environment is added. */
  readonly order?: Partial<Pick<LaunchOrder, 'template' | 'resources' | 'command' | 'env'>>
  /** Parts that are not tested, each with a reason that is printed. */
  readonly cannot?: Readonly<Partial<Record<SandboxPart, string>>>
  /** Variables that the substrate adds to the environment of every worker. */
  readonly adds?: readonly string[]
  /** Names everything that exists on the substrate now (processes, folders, API objects). It must be the same before a launch and after its end. */
  readonly remains?: () => Promise<readonly string[]>
  /** The limit of one test; substrates that start machines need more than the default. */
  readonly timeoutMs?: number
}

/** Milliseconds: enough for a local substrate on a machine that is busy with other tests. */
const defaultTimeoutMs = 60_000
/** Variables that the provider may add: the runner's address, its folders, and those of any process. */
const ownVariables = [
  workerVariables.runnerUrl,
  workerVariables.stateDir,
  workerVariables.workspace,
  'HOME',
  'PATH',
  'PWD',
]
const canary = 'AGENT_ORC_SUITE_CANARY'

/**
 * The contract of a sandbox provider as tests. `make` is called for each test; undefined skips it, after giving the reason. The suite acts as the
 * runner: a real HTTP server that a launched worker polls. The worker is the suite's own, `order.command`; a provider of a remote substrate is
 * tested against a stand-in that runs `suiteWorker` where the substrate would start a machine.
 */
export function testSandboxProvider(
  name: string,
  make: (t: TestContext) => Promise<SandboxProvider | undefined> | SandboxProvider | undefined,
  options: SandboxSuiteOptions = {},
): void {
  const { cannot = {}, adds = [], remains, timeoutMs: timeout = defaultTimeoutMs } = options
  const check: Check = (sentence, body, part) => {
    const reason = part && cannot[part]
    void test(`${name}: ${sentence}`, { timeout, ...(reason ? { skip: reason } : {}) }, async (t) => {
      const provider = await make(t)
      if (!provider) return
      const before = new Set(await remains?.())
      const suite = await openLaunches(t, provider, options.order)
      await body(suite)
      await suite.end()
      const left = async (): Promise<readonly string[]> => ((await remains?.()) ?? []).filter((one) => !before.has(one))
      await until(async () => (await left()).length === 0, 'without remains')
    })
  }
  testLaunch(check)
  testIsolation(check, adds)
  testPause(check, cannot)
  testEnd(check, cannot)
}

/** Declares a test, which is skipped where the substrate cannot do that part. */
type Check = (sentence: string, body: (suite: Launches) => Promise<void>, part?: SandboxPart) => void
type Cannot = NonNullable<SandboxSuiteOptions['cannot']>

function testLaunch(check: Check): void {
  check('a worker reaches the runner at the address it is given, with the token of its order', async ({ start }) => {
    const { order, session } = await start()
    assert.deepEqual([...new Set(session.polls.map(({ token }) => token))], [order.env[workerVariables.token]])
    assert.deepEqual([...new Set(session.polls.map(({ protocol }) => protocol))], [workerProtocol])
  })

  check('a launched sandbox is starting or running, then running, and gone once it is destroyed', async (suite) => {
    const { provider } = suite
    const { sandboxId } = await suite.launch()
    assert.ok(['starting', 'running'].includes(await provider.status(sandboxId)))
    await suite.becomes(sandboxId, 'running')
    await provider.destroy(sandboxId)
    await suite.becomes(sandboxId, 'gone')
  })

  check('a launch that is aborted leaves nothing, whenever that happens', async (suite) => {
    const other = await suite.start()
    const aborted: LaunchOrder[] = []
    // Aborts before the launch, at once, and at moments during it; the later ones may come too late.
    for (const delay of [undefined, 0, 2, 5, 10, 20, 40]) {
      const order = suite.order()
      const signal = delay === undefined ? AbortSignal.abort() : AbortSignal.timeout(delay)
      const launched = await suite.provider.launch(order, signal).catch(() => undefined)
      if (launched) await suite.provider.destroy(launched.sandboxId)
      else aborted.push(order)
    }
    assert.ok(aborted.length >= 1)
    await other.session.polled(undefined, 5)
    const polls = (): number[] => aborted.map(({ sessionId }) => suite.session(sessionId).polls.length)
    const before = polls()
    await other.session.polled(undefined, 20)
    assert.deepEqual(polls(), before)
    assert.deepEqual((await suite.provider.list?.(other.order.owner)) ?? [other.sandboxId], [other.sandboxId])
  })

  check(
    'a template that there is not is refused, and nothing is launched',
    async (suite) => {
      const order = suite.order({ template: 'no-such-template' })
      await assert.rejects(
        suite.provider.launch(order, new AbortController().signal),
        (error) => isAppError(error) && error.code === 'invalid_sandbox' && error.status === 400,
      )
      assert.deepEqual((await suite.provider.list?.(order.owner)) ?? [], [])
    },
    'template',
  )
}

function testIsolation(check: Check, adds: readonly string[]): void {
  check(
    'a worker has the environment that was ordered, and nothing of the runner’s',
    async ({ start }) => {
      process.env[canary] = randomBytes(16).toString('hex')
      const { order, session } = await start({ env: { SUITE_VALUE: 'a b\n"c" $HOME \\ ü' } })
      const env = (await session.call('environment')) as Record<string, string>
      for (const [key, value] of Object.entries(order.env)) assert.equal(env[key], value, key)
      assert.equal(JSON.stringify(env).includes(process.env[canary]), false, 'the canary stays outside')
      const known = new Set([...Object.keys(order.env), ...ownVariables, ...adds])
      assert.deepEqual(
        Object.keys(env).filter((key) => !known.has(key)),
        [],
      )
    },
    'environment',
  )

  check('two sandboxes share neither files nor environment', async (suite) => {
    const one = await suite.start({ env: { SUITE_SECRET: 'of the one' } })
    const other = await suite.start()
    await one.session.call('write_file', { path: 'mine.txt', content: 'of the one' })
    assert.equal(await other.session.call('read_file', { path: 'mine.txt' }), 'ENOENT')
    assert.doesNotMatch(JSON.stringify(await other.session.call('environment')), /of the one/)
    assert.notEqual(one.sandboxId, other.sandboxId)
    assert.match(one.sandboxId, /^[\w.-]{1,128}$/)
  })
}

function testPause(check: Check, cannot: Cannot): void {
  check(
    'a paused sandbox stands still with all of its processes, keeps its files and goes on',
    async (suite) => {
      const { provider } = suite
      const { order, session, sandboxId } = await suite.start()
      const other = await suite.start()
      if (!cannot.copies) {
        const copied = session.polled(({ copy }) => copy)
        await session.call('fork')
        await copied
      }
      await session.call('write_file', { path: 'kept.txt', content: 'kept' })
      await provider.pause(sandboxId)
      await suite.becomes(sandboxId, 'paused')
      await provider.pause(sandboxId)
      // Time is measured in polls of a running sandbox: requests that were under way arrive within its first ones.
      await other.session.polled(undefined, 5)
      const before = session.polls.length
      await other.session.polled(undefined, 40)
      assert.equal(session.polls.length, before, 'a paused worker does not poll')
      const token = randomBytes(16).toString('hex')
      const again = session.polled()
      const copied = session.polled(({ copy }) => copy)
      await provider.resume(sandboxId, { ...order, env: { ...order.env, [workerVariables.token]: token } })
      await suite.becomes(sandboxId, 'running')
      await again
      assert.ok([token, order.env[workerVariables.token]].includes(session.polls.at(-1)!.token))
      assert.equal(await session.call('read_file', { path: 'kept.txt' }), 'kept')
      if (!cannot.copies) await copied
      await provider.resume(sandboxId, order)
    },
    'pause',
  )

  check(
    'a sandbox can be destroyed while it is paused',
    async (suite) => {
      const { sandboxId } = await suite.start()
      await suite.provider.pause(sandboxId)
      await suite.provider.destroy(sandboxId)
      await suite.becomes(sandboxId, 'gone')
      await assert.rejects(suite.provider.pause(sandboxId), isGone)
    },
    'pause',
  )

  check('a provider that lists names the sandboxes of an owner, paused ones included', async (suite) => {
    if (!suite.provider.list) return
    const owner = `own${randomBytes(4).toString('hex')}`
    const mine = [await suite.start({ owner }), await suite.start({ owner })].map(({ sandboxId }) => sandboxId)
    await suite.start()
    if (!cannot.pause) await suite.provider.pause(mine[0]!)
    assert.deepEqual([...(await suite.provider.list(owner))].sort(), [...mine].sort())
    for (const id of mine) await suite.provider.destroy(id)
    await until(async () => (await suite.provider.list!(owner)).length === 0, 'an empty list')
  })
}

function testEnd(check: Check, cannot: Cannot): void {
  check('destroy ends the worker and its files, however often it is called', async (suite) => {
    const { order, session, sandboxId } = await suite.start()
    const other = await suite.start()
    await session.call('write_file', { path: 'secret.txt', content: 'of yesterday' })
    await Promise.all([suite.provider.destroy(sandboxId), suite.provider.destroy(sandboxId)])
    await suite.provider.destroy(sandboxId)
    await suite.becomes(sandboxId, 'gone')
    await other.session.polled(undefined, 5)
    const before = session.polls.length
    await other.session.polled(undefined, 20)
    assert.equal(session.polls.length, before, 'its worker does not poll any more')
    const next = await suite.start({ sessionId: order.sessionId })
    assert.equal(await next.session.call('read_file', { path: 'secret.txt' }), 'ENOENT')
  })

  check('an id that the substrate does not know is gone', async ({ provider }) => {
    const unknown = 'ao-0000000000000000'
    assert.equal(await provider.status(unknown), 'gone')
    await provider.destroy(unknown)
    if (cannot.pause) return
    await assert.rejects(provider.pause(unknown), isGone)
    await assert.rejects(provider.resume(unknown, testOrder('http://127.0.0.1:9')), isGone)
  })

  check(
    'a sandbox whose worker ended is gone',
    async (suite) => {
      const { session, sandboxId } = await suite.start()
      session.shutdown()
      await suite.becomes(sandboxId, 'gone')
      if (!cannot.pause) await assert.rejects(suite.provider.pause(sandboxId), isGone)
      await suite.provider.destroy(sandboxId)
      const crashing = await suite.start()
      void crashing.session.call('exit')
      await suite.becomes(crashing.sandboxId, 'gone')
      await suite.provider.destroy(crashing.sandboxId)
    },
    'exit',
  )
}

const isGone = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_gone' && error.status === 410
