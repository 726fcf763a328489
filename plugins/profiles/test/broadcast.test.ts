import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import type { RunnerLink } from '#contracts/runner'
import { type BroadcastOptions, createBroadcast } from '../broadcast.ts'

const profile = (model: string): Profile => ({ name: 'p', model }) as Profile
const change = (model: string) => ({ tenantId: 'acme', name: 'p', profile: profile(model) })

function setup(putProfile: (model: string) => Promise<void>, more: Partial<BroadcastOptions> = {}) {
  const logged: string[] = []
  const link = {
    putProfile: (_tenant: string, { model }: Profile) => putProfile(model),
    deleteProfile: async () => {},
  } as unknown as RunnerLink
  const send = createBroadcast({
    pool: { all: () => [link] },
    log: {
      warn: (...x: unknown[]) => void logged.push(String(x.at(-1))),
      error: (...x: unknown[]) => void logged.push(String(x.at(-1))),
    },
    signal: new AbortController().signal,
    wait: async () => {},
    ...more,
  })
  return { send, logged }
}

test('a runner that is away is told again until it has the profile', async () => {
  const got: string[] = []
  let failures = 3
  const delays: number[] = []
  const { send, logged } = setup(
    async (model) => {
      if (failures-- > 0) throw new Error('connect ECONNREFUSED')
      got.push(model)
    },
    { wait: async (ms) => void delays.push(ms) },
  )
  await send(change('a/1'))
  assert.deepEqual(got, ['a/1'])
  assert.deepEqual(delays, [250, 500, 1_000])
  assert.equal(logged.length, 3)
})

test('a runner that never answers is given up on, and said so', async () => {
  let tries = 0
  const { send, logged } = setup(async () => {
    tries++
    throw new Error('down')
  })
  await send(change('a/1'))
  assert.equal(tries, 16)
  assert.match(logged.at(-1)!, /gave up/)
  await send(change('a/2'))
  assert.equal(tries, 32)
})

test('what changed while an older state was under way arrives last, once', { timeout: 10_000 }, async () => {
  const got: string[] = []
  const open: (() => void)[] = []
  const { send } = setup(async (model) => {
    got.push(model)
    await new Promise<void>((resolve) => open.push(resolve))
  })
  const first = send(change('a/1'))
  const second = send(change('a/2'))
  const third = send(change('a/3'))
  assert.deepEqual(got, ['a/1'])
  open[0]!()
  while (open.length < 2) await new Promise(setImmediate)
  open[1]!()
  await Promise.all([first, second, third])
  assert.deepEqual(got, ['a/1', 'a/3'])
})

test('a stopped conductor tries no more', async () => {
  const stopping = new AbortController()
  let tries = 0
  const { send } = setup(
    async () => {
      tries++
      throw new Error('down')
    },
    { signal: stopping.signal, wait: async () => stopping.abort() },
  )
  await send(change('a/1'))
  assert.equal(tries, 1)
})

test('a role without runners has nobody to tell', async () => {
  await setup(async () => assert.fail(), { pool: undefined }).send(change('a/1'))
})
