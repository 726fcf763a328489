import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { chmod, chown, mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { diskUsage } from '../home.ts'
import { folderFor } from './remains.ts'

const nobody = 65_534

test('files take what they take on the disk, and each one something', async (t) => {
  const dir = await folderFor(t)
  const [large, many, none] = ['large', 'many', 'none'].map((name) => join(dir, name))
  await mkdir(join(large!, 'deep'), { recursive: true })
  await writeFile(join(large!, 'deep', 'a'), Buffer.alloc(3_000_000, 'x'))
  await mkdir(many!)
  await Promise.all(Array.from({ length: 500 }, (_, i) => writeFile(join(many!, String(i)), '')))
  const used = await diskUsage([large!, many!, none!])
  assert.ok(used.get(large!)! >= 3_000_000 && used.get(large!)! < 3_100_000, String(used.get(large!)))
  assert.ok(used.get(many!)! >= 500 * 4_096, 'empty files as well')
  assert.equal(used.get(none!) ?? 0, 0)
})

test('folders that nest deeper than a path may be long are counted whole', async (t) => {
  const dir = await folderFor(t)
  const script = `mkdir top; cd top; for i in $(seq 40); do n=$(printf '%0200d' $i); mkdir $n; cd ./$n; done; head -c 2000000 /dev/zero > bottom`
  await promisify(execFile)('/bin/sh', ['-c', script], { cwd: dir })
  const used = await diskUsage([join(dir, 'top')])
  await promisify(execFile)('rm', ['-rf', join(dir, 'top')])
  assert.ok(used.get(join(dir, 'top'))! >= 2_000_000)
})

test('what its owner may not read is counted all the same', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only root can become another user')
  const dir = await folderFor(t)
  await chmod(dir, 0o755)
  const [shut, open] = [join(dir, 'shut'), join(dir, 'open')]
  for (const folder of [shut, join(shut, 'a'), open]) {
    await mkdir(folder)
    await writeFile(join(folder, 'file'), Buffer.alloc(1_000_000, 'x'))
    await chown(folder, nobody, nobody)
  }
  await chmod(join(shut, 'a'), 0)
  const script = `import { diskUsage } from ${JSON.stringify(new URL('../home.ts', import.meta.url).href)}
    console.log(JSON.stringify([...(await diskUsage(${JSON.stringify([shut, open])})).values()]))`
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], {
    uid: nobody,
    gid: nobody,
    cwd: '/',
  })
  const [hidden, plain] = JSON.parse(stdout) as number[]
  assert.ok(hidden! >= 2_000_000 && plain! >= 1_000_000, stdout)
})
