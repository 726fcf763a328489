import assert from 'node:assert/strict'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { emptyFolder, type Finished, run, severally, start } from './spawned.ts'

const noStack = (text: string): void => assert.doesNotMatch(text, /^\s+at .+:\d+/m)

/** A role file that boots anywhere: health on one listener. */
async function smallRole(t: TestContext, port = '0'): Promise<string> {
  const file = join(await emptyFolder(t), 'small.yaml')
  const text = `role: small\nlisteners:\n  gateway:\n    port: \${SMALL_PORT:-${port}}\nplugins:\n  health:\n`
  await writeFile(file, text)
  return file
}

test('usage errors exit with 2, say what is wrong on stderr, and leave stdout empty', async (t) => {
  const wrong = [
    [],
    ['no-such-command'],
    ['start'],
    ['start', '--colour'],
    ['dev', '--port', 'many'],
    ['key', 'issue', '--tenant', 'default', '--role', 'king'],
    ['tenant', 'create'],
    ['tenant', 'create', 'Not An Id'],
    ['tenant', 'create', 'x', '--name', ''],
    ['chat', 'support'],
  ]
  const results = await severally(t, wrong)
  // One of them as a user starts it: its code is that of the process.
  results.push(await run(t, wrong[1]!))
  for (const [i, result] of results.entries()) {
    assert.equal(result.code, 2, wrong[i]?.join(' '))
    assert.equal(result.stdout, '')
    assert.notEqual(result.stderr, '')
    noStack(result.stderr)
  }
})

test('--help and --version answer on stdout with 0', async (t) => {
  const [help, version] = (await severally(t, [['--help'], ['--version']])) as [Finished, Finished]
  assert.equal(help.code, 0)
  for (const command of ['dev', 'start', 'chat', 'key', 'tenant', 'migrate', 'check-config', 'plugins', 'postgres']) {
    assert.match(help.stdout, new RegExp(`^  ${command}\\b`, 'm'))
  }
  assert.equal(version.code, 0)
  assert.match(version.stdout, /^\d+\.\d+\.\d+\n$/)
})

test('check-config: every problem as JSON on stdout, 1 when a file cannot boot, 0 when all can', async (t) => {
  const folder = await emptyFolder(t)
  const bad = join(folder, 'bad.yaml')
  await writeFile(bad, 'role: bad\nplugins:\n  nosuch:\n  tokens:\n    pepper: ${AGENT_API_KEY_PEPPER}\n')
  const good = await smallRole(t)
  const result = await run(t, ['check-config', good, bad], { AGENT_API_KEY_PEPPER: 'hunter2' })
  assert.equal(result.code, 1)
  const [first, second] = result.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual(first, { file: good, ok: true, problems: [] })
  assert.equal(second.ok, false)
  assert.equal(second.problems.length, 2)
  assert.doesNotMatch(result.stdout + result.stderr, /hunter2/)
  noStack(result.stderr)
  assert.equal((await run(t, ['check-config', good])).code, 0)
})

test('check-config --strict: a role that can boot and should not is its risks, with 1; without the flag it is ok', async (t) => {
  // As shipped, without a key: anybody who reaches the port may use it.
  const file = fileURLToPath(new URL('../../config/runner.yaml', import.meta.url))
  const [lax, strict] = (await severally(
    t,
    [[], ['--strict']].map((flags) => ['check-config', file, '--json', ...flags]),
  )) as [Finished, Finished]
  assert.deepEqual([lax.code, JSON.parse(lax.stdout)], [0, { file, ok: true, problems: [] }])
  assert.equal(strict.code, 1)
  const { ok, problems } = JSON.parse(strict.stdout) as { ok: boolean; problems: string[] }
  assert.equal(ok, false)
  assert.match(problems[0]!, /the listener runner has no authentication; set RUNNER_SIGNING_KEY_CURRENT/)
  assert.match(strict.stderr, /1 role file cannot boot, or should not/)
})

test('a role that cannot boot is its sentences on stderr and exit code 1, without a stack', async (t) => {
  const folder = await emptyFolder(t)
  const file = join(folder, 'role.yaml')
  await writeFile(file, 'role: test\nplugins:\n  database:\n    migrat: true\n')
  const unknownKey = await run(t, ['start', '--config', file])
  assert.equal(unknownKey.code, 1)
  assert.equal(unknownKey.stdout, '')
  assert.match(
    unknownKey.stderr,
    /^role 'test' cannot boot:\n  - database: config\.migrat is not a setting here; .+role\.yaml:4\)\n$/,
  )
  const missing = await run(t, ['start', '--config', join(folder, 'none.yaml')])
  assert.equal(missing.code, 1)
  assert.match(missing.stderr, /there is no such file/)
  noStack(missing.stderr)
})

test('start: one ready line per role on stdout, everything else on stderr, SIGTERM ends with 0', async (t) => {
  const one = await smallRole(t)
  const two = await smallRole(t)
  const started = start(t, ['start', '--config', one, two])
  const ready = [JSON.parse(await started.line()), JSON.parse(await started.line())]
  for (const { role, urls } of ready) {
    assert.equal(role, 'small')
    assert.equal(await (await fetch(`${urls.gateway}/healthz`)).text(), 'ok')
  }
  assert.notEqual(ready[0].urls.gateway, ready[1].urls.gateway)
  started.child.kill('SIGTERM')
  const { code, stdout, stderr } = await started.finished()
  assert.equal(code, 0)
  assert.equal(stdout.trim().split('\n').length, 2)
  assert.match(stderr, /SIGTERM: stopping/)
})

test('a second Ctrl-C exits at once, though a plugin does not come to an end', async (t) => {
  const folder = await emptyFolder(t)
  const file = join(folder, 'role.yaml')
  const kernel = JSON.stringify(import.meta.resolve('#kernel'))
  await writeFile(
    join(folder, 'stuck.mjs'),
    `import { definePlugin } from ${kernel}
export default definePlugin({ name: 'stuck', async setup(ctx) { ctx.onStop(() => new Promise(() => {})); return {} } })`,
  )
  await writeFile(file, 'role: test\nlisteners:\n  gateway:\n    port: 0\nplugins:\n  stuck:\n    use: ./stuck.mjs\n')
  const started = start(t, ['start', '--config', file])
  await started.line()
  started.child.kill('SIGINT')
  await started.says('SIGINT: stopping')
  started.child.kill('SIGINT')
  assert.equal((await started.finished()).code, 1)
})

test('a port that is taken is one sentence with the port and the variable that changes it', async (t) => {
  const taken = createServer()
  await once(taken.listen(0, '127.0.0.1'), 'listening')
  const { port } = taken.address() as AddressInfo
  const result = await run(t, ['start', '--config', await smallRole(t)], { SMALL_PORT: String(port) })
  taken.close()
  assert.equal(result.code, 1)
  assert.match(
    result.stderr,
    new RegExp(`gateway: 127\\.0\\.0\\.1:${port} is in use by another process; set SMALL_PORT `),
  )
  noStack(result.stderr)
})

test('plugins: the entries in start order with what they need and give; --boot adds the milliseconds', async (t) => {
  const graph = await run(t, ['plugins'])
  assert.equal(graph.code, 0, graph.stderr)
  const rows: { entry: string; requires: string[]; provides: string[]; bootMs?: number }[] = JSON.parse(graph.stdout)
  const at = (entry: string): number => rows.findIndex((row) => row.entry === entry)
  assert.ok(at('database') < at('profiles') && at('profiles') < at('publishing'))
  assert.deepEqual(rows[at('kv')]!.provides.includes('core.kv'), true)
  assert.ok(rows[at('health')]!.requires.includes('core.readiness[]'))
  const booted = await run(t, ['plugins', '--boot', await smallRole(t)])
  for (const row of JSON.parse(booted.stdout)) assert.equal(typeof row.bootMs, 'number')
})
