import assert from 'node:assert/strict'
import { test } from 'node:test'
import { newId } from 'agent-orc/contracts/ids'
import { testConductor } from 'agent-orc/testing'
import plugin from '../index.ts'
import type { Note } from '../schema.ts'

test('notes', async (t) => {
  // One for all: starting a conductor takes longer than what is asked of it.
  const { caller, database } = await testConductor(t, [plugin])
  await t.test('what an admin writes its tenant reads, until it is deleted', async () => {
    const [admin, member] = [await caller('acme', 'admin'), await caller('acme', 'member')]
    const written = await admin('POST', '/api/notes', { text: 'water the plants' })
    assert.equal(written.statusCode, 201)
    const note = written.json<Note>()
    assert.equal(note.text, 'water the plants')
    assert.match(note.createdBy, /^tak_/)
    assert.deepEqual((await member('GET', `/api/notes/${note.id}`)).json(), note)
    assert.deepEqual((await member('GET', '/api/notes')).json(), [note])
    assert.equal((await admin('DELETE', `/api/notes/${note.id}`)).statusCode, 204)
    assert.equal((await admin('DELETE', `/api/notes/${note.id}`)).statusCode, 404)
    assert.deepEqual((await member('GET', '/api/notes')).json(), [])
  })

  await t.test('members read and do not write', async () => {
    const member = await caller('acme', 'member')
    assert.equal((await member('POST', '/api/notes', { text: 'mine' })).statusCode, 403)
    assert.equal((await member('DELETE', `/api/notes/${newId('note')}`)).statusCode, 403)
  })

  await t.test('no tenant meets the notes of another: they answer as unknown ones do', async () => {
    const [acme, globex] = [await caller('acme', 'owner'), await caller('globex', 'owner')]
    const { id } = (await acme('POST', '/api/notes', { text: 'secret' })).json<Note>()
    for (const method of ['GET', 'DELETE'] as const) {
      const answers = [await globex(method, `/api/notes/${id}`), await globex(method, `/api/notes/${newId('note')}`)]
      const [foreign, unknown] = answers.map((answer) => ({ ...answer.json<object>(), request_id: '' }))
      assert.deepEqual(foreign, unknown)
      assert.ok(answers.every(({ statusCode }) => statusCode === 404))
    }
    assert.deepEqual((await globex('GET', '/api/notes')).json(), [])
    assert.equal((await acme('GET', `/api/notes/${id}`)).statusCode, 200)
    // Not by a statement that forgets the tenant either.
    assert.deepEqual(await database.unit('globex', { text: 'SELECT id FROM notes' }), [])
  })

  await t.test('a list is answered whole, or by the page', async () => {
    const admin = await caller('default', 'admin')
    for (const text of ['a', 'b', 'c']) await admin('POST', '/api/notes', { text })
    const whole = await admin('GET', '/api/notes')
    assert.equal(whole.headers['x-total-count'], '3')
    const page = await admin('GET', '/api/notes?limit=2&offset=1')
    assert.deepEqual(page.json(), whole.json<Note[]>().slice(1))
    assert.match(String(page.headers['link']), /rel="prev"/)
    assert.equal((await admin('GET', '/api/notes?limit=0')).statusCode, 400)
  })

  await t.test('bad input is 400 with a sentence, and an id that cannot be one is unknown', async () => {
    const admin = await caller('acme', 'admin')
    for (const body of [
      {},
      { text: '' },
      { text: 7 },
      { text: 'a\0b' },
      { text: 'a', tenantId: 'globex' },
      'text',
      null,
    ]) {
      const refused = await admin('POST', '/api/notes', body)
      assert.equal(refused.statusCode, 400, JSON.stringify(body))
      const { error, message } = refused.json<{ error: string; message: string }>()
      assert.equal(error, 'invalid_request')
      assert.ok(message.length > 0)
    }
    for (const id of ['x', '%00', newId('run'), `${newId('note')}x`])
      assert.equal((await admin('GET', `/api/notes/${id}`)).statusCode, 404, id)
  })
})
