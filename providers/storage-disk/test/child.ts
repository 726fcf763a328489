import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { isAppError } from '#kernel'
import { newObject } from '#testing'
import { DiskBackend } from '../backend.ts'

// A process that writes objects until its disk is full, or until it is killed. Run by crash.test.ts.
const [mode, dir = ''] = process.argv.slice(2)
const store = new DiskBackend(dir)
if (mode === 'fill') {
  await store.put('acme', 'old', newObject('old'))
  const codes: unknown[] = []
  for (const [key, bytes] of [
    ['large', 1_000_000],
    ['old', 1_000_000],
    ['small', 10],
  ] as const) {
    const failed = await store.put('acme', key, newObject(Buffer.alloc(bytes))).catch((error: unknown) => error)
    codes.push(isAppError(failed) ? [failed.code, failed.status] : 'stored')
  }
  const left = await readdir(join(dir, '.incoming'))
  const old = await store.open('acme', 'old')
  console.log(JSON.stringify({ codes, left, old: old?.info.bytes, use: await store.use('acme') }))
} else {
  for (let i = 0; ; i++) {
    const { info } = await store.put('acme', `k${i % 7}/x`, newObject(String(i % 10).repeat(300_000)))
    console.log(info.key)
  }
}
