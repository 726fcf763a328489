import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Statement } from '#contracts/database'
import { createUnits, GroupRefused, type SendTogether } from '../units.ts'

/** A server whose transactions wait to be answered one by one; a statement named `bad` is refused. */
function scripted() {
  const sent: { tenants: string; names: string[]; answer: () => void }[] = []
  const send: SendTogether = (units) =>
    new Promise((resolve, reject) => {
      const names = units.map((unit) => unit.statement.name!)
      const tenants = [...new Set(units.map((unit) => unit.tenantId))].join(' ')
      const refusal = Object.assign(new Error('refused'), { code: '23505' })
      const lock = Object.assign(new Error('locked'), { code: '55P03' })
      // One that is refused in a group and meets a lock when it is sent alone.
      const isLate = names.includes('late')
      const answer = (): void =>
        isLate
          ? reject(new GroupRefused(names.length > 1 ? refusal : lock, names.indexOf('late')))
          : names.includes('bad')
            ? reject(new GroupRefused(refusal, names.indexOf('bad')))
            : names.includes('locked')
              ? reject(new GroupRefused(lock, names.indexOf('locked')))
              : names.includes('cut')
                ? reject(new GroupRefused(new Error('gone'), -1))
                : resolve(names.map((name) => [{ name }]))
      sent.push({ tenants, names, answer })
    })
  const aside: string[] = []
  const held: (() => void)[] = []
  const unit = createUnits(send, async (units) => {
    aside.push(units.map(({ tenantId, statement: { name } }) => `${tenantId} ${name}`).join(', '))
    await new Promise<void>((resolve) => held.push(resolve))
    return units.map(({ statement: { name } }) => [{ name: name! }])
  })
  const run = (tenant: string, name: string, order = name, bytes = 0) =>
    unit(tenant, { name, text: 'SELECT 1' } satisfies Statement, { order, bytes })
  return { run, sent, aside, held }
}

const turn = () => new Promise((resolve) => setImmediate(resolve))
test('a unit alone leaves at once; those that wait leave together in one order, each with its own rows', async () => {
  const { run, sent } = scripted()
  const first = ['a', 'b'].map((name) => run('acme', name))
  assert.deepEqual(
    sent.map((s) => s.names),
    [['a'], ['b']],
  )
  const late = [run('acme', 'z'), run('globex', 'g'), run('acme', 'y')]
  assert.equal(sent.length, 2)
  sent[0]!.answer()
  await turn()
  assert.deepEqual(
    sent.slice(2).map((s) => [s.tenants, s.names]),
    [['acme globex', ['y', 'z', 'g']]],
  )
  for (const s of sent.slice(1)) s.answer()
  assert.deepEqual(
    await Promise.all([...first, ...late]),
    ['a', 'b', 'z', 'g', 'y'].map((name) => [{ name }]),
  )
})

test('a refused statement fails alone; an answer that never came fails the whole group', async () => {
  for (const [broken, alive] of [
    ['bad', true],
    ['cut', false],
  ] as const) {
    const { run, sent } = scripted()
    const held = ['a', 'b'].map((name) => run('acme', name))
    const group = ['d', broken, 'e'].map((name) => run('acme', name))
    const settled = Promise.allSettled(group)
    let answered = 0
    const answerAll = async (): Promise<void> => {
      for (; answered < sent.length; await turn()) sent[answered++]!.answer()
    }
    await answerAll()
    await Promise.all(held)
    const states = (await settled).map((s) => s.status === 'fulfilled')
    assert.deepEqual(states, [alive, false, alive])
    // The other units stay together; only the refused one is sent alone.
    if (alive)
      assert.deepEqual(
        sent.slice(2).map((s) => s.names),
        [['bad', 'd', 'e'], ['d', 'e'], ['bad']],
      )
  }
})

test('a group is bounded by count and by bytes', async () => {
  const { run, sent } = scripted()
  const all: Promise<object[]>[] = ['a', 'b'].map((name) => run('acme', name))
  for (let i = 0; i < 50; i++) all.push(run('acme', `s${i}`))
  for (let i = 0; i < 3; i++) all.push(run('acme', `t${i}`, `t${i}`, 700_000))
  for (let i = 0; i < sent.length; i++, await turn()) sent[i]!.answer()
  await Promise.all(all)
  assert.deepEqual(
    sent.map((s) => s.names.length),
    [1, 1, 16, 16, 16, 3, 1, 1],
  )
})

test('the backlog of one tenant keeps no unit of another waiting', async () => {
  const { run, sent } = scripted()
  const all = Array.from({ length: 202 }, (_, i) => run('acme', `a${String(i).padStart(3, '0')}`))
  all.push(run('globex', 'g'))
  sent[0]!.answer()
  await turn()
  const group = sent.at(-1)!
  assert.equal(group.names.length, 9)
  assert.ok(group.names.includes('g'), 'it leaves with the next group, in which it waits for few of them')
  assert.deepEqual(
    group.names.filter((name) => name !== 'g'),
    Array.from({ length: 8 }, (_, i) => `a${String(i + 2).padStart(3, '0')}`),
    'those of a tenant stay in their order',
  )
  for (let i = 1; i < sent.length; i++) {
    sent[i]!.answer()
    await turn()
  }
  await Promise.all(all)
})

test('whoever meets a locked row waits aside, with all units of its tenant, and nobody else waits for it again', async () => {
  const { run, sent, aside, held } = scripted()
  const first = [run('acme', 'a'), run('globex', 'b')]
  const group = [run('acme', 'locked'), run('globex', 'g'), run('acme', 'c')]
  sent[0]!.answer()
  await turn()
  assert.deepEqual(sent[2]!.names, ['c', 'locked', 'g'])
  // They are behind it when it meets the row.
  const behind = [run('acme', 'd'), run('globex', 'h')]
  sent[2]!.answer()
  await turn()
  assert.deepEqual(aside, ['acme c, acme d, acme locked'])
  assert.deepEqual(sent[3]!.names, ['g'])
  const later = ['e', 'f'].map((name) => run('acme', name))
  assert.equal(sent.length, 4, 'they are sent aside as well')
  for (const n of [1, 3]) sent[n]!.answer()
  await turn()
  assert.deepEqual(sent[4]!.names, ['h'])
  sent[4]!.answer()
  assert.equal(aside.length, 1, 'one group after the other')
  held[0]!()
  await turn()
  assert.deepEqual(aside.slice(1), ['acme e, acme f'])
  held[1]!()
  const names = (await Promise.all([...first, ...group, ...behind, ...later])).map(
    ([row]) => (row as { name: string }).name,
  )
  assert.deepEqual(names, ['a', 'b', 'locked', 'g', 'c', 'd', 'h', 'e', 'f'])
})

test('a unit that is refused with others and meets a locked row alone goes aside alone; those that were committed are not sent again', async () => {
  const { run, sent, aside, held } = scripted()
  const first = ['a', 'b'].map((name) => run('acme', name))
  const group = ['c', 'late', 'd'].map((name) => run('acme', name))
  for (let n = 0; n < 5; n++) {
    sent[n]!.answer()
    await turn()
  }
  assert.deepEqual(
    sent.slice(2).map(({ names }) => names),
    [['c', 'd', 'late'], ['c', 'd'], ['late']],
  )
  assert.deepEqual(aside, ['acme late'])
  held[0]!()
  const names = (await Promise.all([...first, ...group])).map(([row]) => (row as { name: string }).name)
  assert.deepEqual(names, ['a', 'b', 'c', 'late', 'd'])
})
