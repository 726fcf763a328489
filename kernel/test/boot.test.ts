import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import fp from 'fastify-plugin'
import { access, boot, BootError, capability, definePlugin, type Entry, type Role, Settings, slot } from '#kernel'
import { createLogger } from '../kit/logger.ts'

const A = capability<string>('test.a')
const log = createLogger('test', 'silent')

/** A plugin that writes down what happens to it. */
const recorder = (events: string[], name: string, more: Partial<Parameters<typeof definePlugin>[0]> = {}) =>
  definePlugin({
    name,
    async setup(ctx) {
      events.push(`${name} setup`)
      ctx.onStart(async () => void events.push(`${name} start`))
      ctx.onStop(async () => void events.push(`${name} stop`))
      return {}
    },
    ...more,
  })

const role = (plugins: Entry[], listeners: Role['listeners'] = {}): Role => ({ name: 'test', listeners, plugins })
const as = (plugin: Entry['plugin'], name = plugin.name, config?: unknown): Entry => ({ name, plugin, config })
const on = { host: '127.0.0.1', port: 0 }

const bootProblems = async (given: Role): Promise<readonly string[]> => {
  try {
    const running = await boot(given, { log })
    await running.stop()
  } catch (error) {
    assert.ok(error instanceof BootError)
    return error.problems
  }
  return []
}

test('plugins are set up in the order of their capabilities, then started, and stopped in reverse', async () => {
  const events: string[] = []
  const needs = recorder(events, 'needs', { requires: { a: A } })
  const makes = definePlugin({
    name: 'makes',
    provides: { a: A },
    async setup(ctx) {
      events.push('makes setup')
      ctx.onStop(async () => void events.push('makes stop'))
      return { a: 'x' }
    },
  })
  const running = await boot(role([as(needs), as(makes)]), { log })
  await running.stop()
  assert.deepEqual(events, ['makes setup', 'needs setup', 'needs start', 'needs stop', 'makes stop'])
})

test('what must be let end before a listener closes runs while that listener still answers, in the order of the listeners', async () => {
  const events: string[] = []
  let url = (_listener: string): string => assert.fail('not listening yet')
  const status = async (listener: string): Promise<number | string> =>
    fetch(`${url(listener)}/openapi.json`).then(
      (reply) => reply.status,
      () => 'closed',
    )
  const waits = definePlugin({
    name: 'waits',
    async setup(ctx) {
      url = ctx.urlOf
      for (const listener of ['second', 'first', 'off']) {
        ctx.beforeClose(listener, async () => {
          events.push(`${listener}: first ${await status('first')}, second ${await status('second')}`)
          throw new Error('what fails here keeps nothing from closing')
        })
      }
      ctx.onStop(async () => void events.push(`stop: ${await status('second')}`))
      return {}
    },
  })
  const running = await boot(
    role([as(waits)], { first: on, second: on, off: { host: '127.0.0.1', port: undefined } }),
    { log },
  )
  await assert.rejects(running.stop(), AggregateError)
  assert.deepEqual(events, ['first: first 200, second 200', 'second: first closed, second 200', 'stop: closed'])
})

test('a setup that fails is named, and what already started is stopped in reverse', async () => {
  const events: string[] = []
  const boom = definePlugin({
    name: 'boom',
    async setup() {
      throw new Error('nope')
    },
  })
  const plugins = [as(recorder(events, 'one')), as(recorder(events, 'two')), as(boom), as(recorder(events, 'never'))]
  assert.deepEqual(await bootProblems(role(plugins)), ['boom: setup: nope'])
  assert.deepEqual(events, ['one setup', 'two setup', 'two stop', 'one stop'])
})

test('a start that fails is named, and everything is stopped', async () => {
  const events: string[] = []
  const boom = definePlugin({
    name: 'boom',
    async setup(ctx) {
      ctx.onStart(async () => {
        throw new Error('nope')
      })
      return {}
    },
  })
  assert.deepEqual(await bootProblems(role([as(recorder(events, 'one')), as(boom)], { gateway: on })), [
    'boom: start: nope',
  ])
  assert.deepEqual(events, ['one setup', 'one start', 'one stop'])
})

test('one stop that fails does not keep the others from stopping, and is reported', async () => {
  const events: string[] = []
  const stuck = definePlugin({
    name: 'stuck',
    async setup(ctx) {
      ctx.onStop(async () => {
        throw new Error('stuck')
      })
      return {}
    },
  })
  const running = await boot(role([as(recorder(events, 'one')), as(stuck)]), { log })
  await assert.rejects(running.stop(), (error: AggregateError) => error.errors[0].message === 'stuck')
  assert.equal(events.at(-1), 'one stop')
})

test('stopping twice is stopping once', async () => {
  const events: string[] = []
  const running = await boot(role([as(recorder(events, 'one'))]), { log })
  await Promise.all([running.stop(), running.stop()])
  assert.deepEqual(
    events.filter((e) => e.endsWith('stop')),
    ['one stop'],
  )
})

test('one plugin can be used twice, each time with its own settings', async () => {
  const seen: string[] = []
  const Families = slot<string>('test.families')
  const signing = definePlugin({
    name: 'signing',
    config: Settings({ family: Type.String() }),
    provides: { families: Families },
    setup: async ({ config }) => ({ families: { [config.family]: `keys of ${config.family}` } }),
  })
  const reads = definePlugin({
    name: 'reads',
    requires: { families: Families },
    async setup({ deps }) {
      seen.push(...deps.families.values())
      return {}
    },
  })
  const running = await boot(
    role([as(reads), as(signing, 'signing-chat', { family: 'chat' }), as(signing, 'signing-vfs', { family: 'vfs' })]),
    { log },
  )
  await running.stop()
  assert.deepEqual(seen, ['keys of chat', 'keys of vfs'])
})

test('two plugins that add the same name to a slot fail the boot', async () => {
  const Things = slot<number>('test.things')
  const add = definePlugin({ name: 'add', provides: { t: Things }, setup: async () => ({ t: { x: 1 } }) })
  assert.deepEqual(await bootProblems(role([as(add, 'one'), as(add, 'two')])), [
    "two: setup: 'test.things' already has an entry 'x'",
  ])
})

test('a plugin without types that forgets what it promised is named', async () => {
  const forgets = { ...definePlugin({ name: 'f', setup: async () => ({}) }), provides: { a: A } } as Entry['plugin']
  assert.deepEqual(await bootProblems(role([as(forgets)])), ["f: setup: setup returned nothing for 'a' (test.a)"])
})

test('a listener that is declared and off mounts nothing; one nobody declared fails the boot', async () => {
  let mounted = 0
  const mounts = definePlugin({
    name: 'mounts',
    async setup(ctx) {
      ctx.routes('internal', async () => void mounted++)
      assert.deepEqual(ctx.listeners, ['gateway'])
      return {}
    },
  })
  const off = { host: '127.0.0.1', port: undefined }
  const running = await boot(role([as(mounts)], { gateway: on, internal: off }), { log })
  assert.deepEqual(Object.keys(running.urls), ['gateway'])
  await running.stop()
  assert.equal(mounted, 0)
  assert.deepEqual(await bootProblems(role([as(mounts)], { gateway: on })), [
    "mounts: setup: this role declares no listener 'internal'; add it under listeners",
  ])
})

test('a route that does not say who may call it refuses to boot', async () => {
  const open = definePlugin({
    name: 'open',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        app.get('/x', async () => 'x')
      })
      return {}
    },
  })
  assert.deepEqual(await bootProblems(role([as(open)], { gateway: on })), [
    "open: routes: route GET /x does not say who may call it; add access('...')",
  ])
})

test('a port that is taken is named with the variable that changes it', async () => {
  const taken = createServer()
  await once(taken.listen(0, '127.0.0.1'), 'listening')
  const { port } = taken.address() as AddressInfo
  const origin = { at: 'config/gateway.yaml:6', variables: ['PORT'] }
  const problems = await bootProblems(role([], { gateway: { host: '127.0.0.1', port, origin } }))
  taken.close()
  assert.deepEqual(problems, [
    `listen gateway: 127.0.0.1:${port} is in use by another process; set PORT (config/gateway.yaml:6)`,
  ])
})

test('where a listener may have another port, one that is taken is no problem', async (t) => {
  const taken = createServer()
  await once(taken.listen(0, '127.0.0.1'), 'listening')
  t.after(() => taken.close())
  const { port } = taken.address() as AddressInfo
  const running = await boot(role([], { operations: { host: '127.0.0.1', port, orFree: true } }))
  t.after(() => running.stop())
  assert.match(running.urls['operations']!, /^http:\/\/127\.0\.0\.1:\d+$/)
  assert.notEqual(new URL(running.urls['operations']!).port, String(port))
  assert.equal((await fetch(`${running.urls['operations']}/nothing`)).status, 404)
})

test('listeners close before plugins stop, outermost first, so that a request under way can finish', async () => {
  const events: string[] = []
  let release = (): void => {}
  let arrived = (): void => {}
  const waiting = new Promise<void>((resolve) => {
    arrived = resolve
  })
  const serves = definePlugin({
    name: 'serves',
    async setup(ctx) {
      ctx.onStop(async () => void events.push('plugin stopped'))
      ctx.routes('gateway', async (app) => {
        app.addHook('onClose', async () => void events.push('gateway closed'))
        app.get('/slow', access('public'), async () => {
          arrived()
          await new Promise<void>((resolve) => {
            release = resolve
          })
          // The inner listener still serves while this request needs it.
          return (await fetch(`${ctx.urlOf('runner')}/inner`)).text()
        })
      })
      ctx.routes('runner', async (app) => {
        app.addHook('onClose', async () => void events.push('runner closed'))
        app.get('/inner', access('public'), async () => 'served')
      })
      return {}
    },
  })
  const running = await boot(role([as(serves)], { gateway: on, runner: on }), { log })
  const answer = fetch(`${running.urls['gateway']}/slow`).then((reply) => reply.text())
  await waiting
  const stopped = running.stop()
  release()
  assert.equal(await answer, 'served')
  await stopped
  assert.deepEqual(events, ['gateway closed', 'runner closed', 'plugin stopped'])
})

test('what a plugin registers on the innermost listener ends in its turn: after the plugins that came later, before those that came sooner', async () => {
  for (const fails of [false, true]) {
    const events: string[] = []
    const connects = definePlugin({
      name: 'connects',
      async setup({ innermost, onStart, onStop }) {
        onStop(async () => void events.push('connects stops'))
        await innermost!.register(
          fp(async (app) => {
            app.decorate('connection', 'open')
            app.addHook('onClose', async () => void events.push('connection ends'))
          }),
        )
        // Late, as for what is opened when the plugin starts.
        onStart(async () => onStop(async () => void events.push('connects stops what it started')))
        return {}
      },
    })
    const routes = definePlugin({
      name: 'routes',
      async setup(ctx) {
        ctx.routes('runner', async (app) => {
          app.addHook('onClose', async () => void events.push('runner closed'))
          assert.equal(app.getDecorator('connection'), 'open')
          if (fails) throw new Error('nope')
        })
        return {}
      },
    })
    const plugins = [recorder(events, 'first'), connects, recorder(events, 'last'), routes].map((one) => as(one))
    if (!fails) await (await boot(role(plugins, { gateway: on, runner: on }), { log })).stop()
    else assert.deepEqual(await bootProblems(role(plugins, { gateway: on, runner: on })), ['routes: routes: nope'])
    assert.deepEqual(
      events.filter((event) => !/setup|start$/.test(event)),
      [
        'runner closed',
        'last stop',
        'connection ends',
        ...(fails ? [] : ['connects stops what it started']),
        'connects stops',
        'first stop',
      ],
    )
  }
})

test('`stopping` tells plugins before anything closes', async () => {
  let signal: AbortSignal | undefined
  let toldFirst: boolean | undefined
  const watches = definePlugin({
    name: 'watches',
    async setup(ctx) {
      signal = ctx.stopping
      ctx.routes('gateway', async (app) => {
        app.addHook('preClose', async () => {
          toldFirst = ctx.stopping.aborted
        })
      })
      return {}
    },
  })
  const running = await boot(role([as(watches)], { gateway: on }), { log })
  assert.equal(signal?.aborted, false)
  await running.stop()
  assert.equal(toldFirst, true)
})

test('urlOf throws until the kernel listens', async () => {
  const eager = definePlugin({
    name: 'eager',
    async setup(ctx) {
      ctx.urlOf('gateway')
      return {}
    },
  })
  assert.deepEqual(await bootProblems(role([as(eager)], { gateway: on })), [
    "eager: setup: listener 'gateway' is not listening (yet)",
  ])
})

test('a plugin may end its role in good order: whoever booted it is told, or it stops by itself', async () => {
  for (const told of [true, false]) {
    const events: string[] = []
    const done = definePlugin({
      name: 'done',
      async setup(ctx) {
        ctx.onStart(async () => ctx.end())
        return {}
      },
    })
    const stopped = Promise.withResolvers<void>()
    const last = definePlugin({
      name: 'last',
      async setup(ctx) {
        ctx.onStop(async () => stopped.resolve())
        return {}
      },
    })
    const options = told ? { log, onEnd: () => void events.push('end') } : { log }
    const running = await boot(role([as(done), as(last)]), options)
    if (told) await running.stop()
    await stopped.promise
    assert.deepEqual(events, told ? ['end'] : [])
  }
})

test('what plugins load on demand is loaded before they start, in a role that says so', async () => {
  const events: string[] = []
  const lazy = recorder(events, 'lazy', {
    async setup(ctx) {
      ctx.loads(async () => void events.push('loaded'))
      ctx.onStart(async () => void events.push('started'))
      return {}
    },
  })
  for (const preload of [true, false]) {
    const running = await boot({ ...role([as(lazy)]), preload }, { log })
    await running.stop()
  }
  assert.deepEqual(events, ['loaded', 'started', 'started'])
  const broken = definePlugin({
    name: 'broken',
    setup: async (ctx) => (ctx.loads(() => Promise.reject(new Error('no such package'))), {}),
  })
  assert.deepEqual(await bootProblems({ ...role([as(broken)]), preload: true }), ['broken: preload: no such package'])
})
