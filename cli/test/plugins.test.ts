import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { kinds } from '../plugins.ts'
import { emptyFolder, run, severally, start } from './spawned.ts'

for (const kind of Object.keys(kinds)) {
  test(`plugin new ${kind} writes a package of at most 12 files whose tests are green at once`, async (t) => {
    const folder = join(await emptyFolder(t), 'my-part')
    const made = await run(t, ['plugin', 'new', kind, 'my-part', '--dir', folder, '--json'])
    assert.equal(made.code, 0, made.stderr)
    const { files } = JSON.parse(made.stdout) as { files: string[] }
    assert.ok(files.length <= 12, files.join(', '))
    for (const file of files.filter((file) => /\.(ts|sql)$/.test(file))) {
      assert.doesNotMatch(
        await readFile(join(folder, file), 'utf8'),
        /'(echo|plain|greeting|notes)'|\/notes\b|(FROM|INTO|UPDATE|TABLE|ON) notes/,
        'nothing has the name of the example',
      )
    }
    const { scripts } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as {
      scripts: Record<string, string>
    }
    // What `npm test` does there, without what npm itself takes to start.
    const [, ...args] = scripts['test']!.split(' ')
    const child = spawn(process.execPath, args, { cwd: folder, env: { PATH: process.env['PATH'] } })
    let report = ''
    child.stdout.on('data', (data) => {
      report += data
    })
    const [code] = (await once(child, 'close')) as [number]
    assert.equal(code, 0, report)
    assert.match(report, /pass [1-9]/)
    assert.match(report, /fail 0/)
  })
}

test('plugin new refuses a folder with something in it, a bad name and an unknown kind, and writes nothing', async (t) => {
  const folder = await emptyFolder(t)
  await writeFile(join(folder, 'mine.txt'), 'mine')
  const taken = await run(t, ['plugin', 'new', 'tool', 'my-tool', '--dir', folder])
  assert.equal(taken.code, 1)
  assert.match(taken.stderr, /is not empty/)
  const wrong = [
    ['tool', 'My Tool'],
    ['tool', '../up'],
    ['toll', 'my-tool'],
  ]
  const news = wrong.map((args) => ['plugin', 'new', ...args, '--dir', join(folder, 'new')])
  for (const [i, { code }] of (await severally(t, news)).entries()) assert.equal(code, 2, wrong[i]!.join(' '))
  assert.deepEqual(await readdir(folder), ['mine.txt'])
})

test('dev --with adds plugins of a stranger: the tool is there, and the capability with its table', async (t) => {
  const [tool, capability] = [join(await emptyFolder(t), 'my-tool'), join(await emptyFolder(t), 'my-notes')]
  const made = await severally(t, [
    ['plugin', 'new', 'tool', 'my-tool', '--dir', tool],
    ['plugin', 'new', 'capability', 'my-notes', '--dir', capability],
  ])
  assert.deepEqual(
    made.map(({ code }) => code),
    [0, 0],
  )
  const data = await emptyFolder(t)
  const dev = start(t, ['dev', '--json', '--port', '0', '--data', data, '--with', tool, capability])
  const { runnerUrl, conductorUrl, apiKey } = JSON.parse(await dev.line()) as Record<string, string>
  const specs = (await (await fetch(`${runnerUrl}/runner/toolkit/specs`)).json()) as { name: string }[]
  assert.ok(specs.some(({ name }) => name === 'greet'))
  const notes = await fetch(`${conductorUrl}/api/my-notes`, { headers: { authorization: `Bearer ${apiKey}` } })
  assert.deepEqual([notes.status, await notes.json()], [200, []])
  dev.child.kill('SIGTERM')
  assert.equal((await dev.finished()).code, 0)
})

test('dev --with says what it cannot load', async (t) => {
  const wrong = await run(t, ['dev', '--port', '0', '--data', await emptyFolder(t), '--with', '/nowhere'])
  assert.equal(wrong.code, 1)
  assert.match(wrong.stderr, /'\/nowhere' is not there/)
})
