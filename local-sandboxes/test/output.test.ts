import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { tailOf } from '#local-sandboxes'

test('the end of what a process prints is kept', async () => {
  const stream = Readable.from([Buffer.from('first '), Buffer.alloc(5_000, 'x'), Buffer.from(' last\n')])
  const tail = tailOf([stream, null])
  await new Promise((done) => stream.once('end', done))
  assert.match(tail(), /^x+ last$/)
  assert.ok(tail().length <= 4_096)
})

test('who prints without end has to wait', async () => {
  let given = 0
  const stream = new Readable({
    read() {
      given += 65_536
      this.push(Buffer.alloc(65_536))
    },
  })
  tailOf([stream])
  await new Promise((done) => stream.once('pause', done))
  assert.ok(given <= 1_048_576, `${given} bytes were taken at once`)
  stream.destroy()
})
