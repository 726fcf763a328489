import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database, Statement } from '#contracts/database'
import { createGroupCommit } from '../group-commit.ts'

/** A database whose batches wait to be answered one by one; a statement named `bad` is refused. */
function scripted() {
  const sent: { tenantId: string; names: string[]; answer: () => void }[] = []
  const batch = (tenantId: string, statements: readonly Statement[]): Promise<object[][]> =>
    new Promise((resolve, reject) => {
      const names = statements.map((s) => s.name!)
      const refusal = Object.assign(new Error('refused'), { code: '23505' })
      const answer = (): void =>
        names.includes('bad')
          ? reject(refusal)
          : names.includes('cut')
            ? reject(new Error('gone'))
            : resolve(names.map((name) => [{ name }]))
      sent.push({ tenantId, names, answer })
    })
  return { db: { batch } as unknown as Database, sent }
}

const turn = () => new Promise((resolve) => setImmediate(resolve))
const statement = (name: string): Statement => ({ name, text: 'SELECT 1' })

test('a unit alone leaves at once; those that wait leave together, by tenant, each with its own rows', async () => {
  const { db, sent } = scripted()
  const commits = createGroupCommit(db)
  const run = (tenant: string, name: string, session = name) => commits.run(tenant, session, statement(name))
  const first = ['a', 'b', 'c'].map((name) => run('acme', name))
  assert.deepEqual(
    sent.map((s) => s.names),
    [['a'], ['b'], ['c']],
  )
  const late = [run('acme', 'z'), run('globex', 'g'), run('acme', 'y')]
  assert.equal(sent.length, 3)
  sent[0]!.answer()
  sent[1]!.answer()
  await turn()
  assert.deepEqual(
    sent.slice(3).map((s) => [s.tenantId, s.names]),
    [
      ['acme', ['y', 'z']],
      ['globex', ['g']],
    ],
  )
  for (const s of sent.slice(2)) s.answer()
  assert.deepEqual(
    await Promise.all([...first, ...late]),
    ['a', 'b', 'c', 'z', 'g', 'y'].map((name) => [{ name }]),
  )
})

test('a refused statement fails alone; an answer that never came fails the whole group', async () => {
  for (const [broken, alive] of [
    ['bad', true],
    ['cut', false],
  ] as const) {
    const { db, sent } = scripted()
    const commits = createGroupCommit(db)
    const held = ['a', 'b', 'c'].map((name) => commits.run('acme', name, statement(name)))
    const group = ['d', broken, 'e'].map((name) => commits.run('acme', name, statement(name)))
    const settled = Promise.allSettled(group)
    let answered = 0
    const answerAll = async (): Promise<void> => {
      for (; answered < sent.length; await turn()) sent[answered++]!.answer()
    }
    await answerAll()
    await Promise.all(held)
    const states = (await settled).map((s) => s.status === 'fulfilled')
    assert.deepEqual(states, [alive, false, alive])
  }
})

test('a group is bounded by count and by bytes', async () => {
  const { db, sent } = scripted()
  const commits = createGroupCommit(db)
  const all: Promise<object[]>[] = ['a', 'b', 'c'].map((name) => commits.run('acme', name, statement(name)))
  for (let i = 0; i < 50; i++) all.push(commits.run('acme', `s${i}`, statement(`s${i}`)))
  for (let i = 0; i < 3; i++) all.push(commits.run('acme', `t${i}`, statement(`t${i}`), 700_000))
  for (let i = 0; i < sent.length; i++, await turn()) sent[i]!.answer()
  await Promise.all(all)
  assert.deepEqual(
    sent.map((s) => s.names.length),
    [1, 1, 1, 32, 19, 1, 1],
  )
})
