import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { headBytes, tailBytes } from '../tools/processes.ts'
import { isAlive, pidIn, startTools, until } from './support.ts'

const timeout = 60_000

test(
  'a command runs in the workspace, and its output and exit code are told in the order in which they came',
  { timeout },
  async (t) => {
    const { call, workspace } = await startTools(t)
    await call('write_file', { path: 'sub/x', content: '' })
    const said = async (input: Record<string, unknown>) => {
      const { ok, content } = await call('shell', input)
      return [ok, content]
    }
    assert.deepEqual(await said({ command: 'echo out; echo err >&2; echo again' }), [
      true,
      'out\nerr\nagain\n[Exit code 0.]',
    ])
    assert.deepEqual(await said({ command: 'printf half; exit 3' }), [false, 'half\n[Exit code 3.]'])
    assert.deepEqual(await said({ command: 'true' }), [true, '[Exit code 0.]'])
    assert.deepEqual(await said({ command: 'pwd', cwd: 'sub' }), [true, `${workspace}/sub\n[Exit code 0.]`])
    assert.deepEqual(await said({ command: 'kill -TERM $$' }), [false, '[It was killed by SIGTERM.]'])
    assert.match((await call('shell', { command: 'no-such-program' })).content, /not found\n\[Exit code 127\.\]$/)
    assert.deepEqual(await said({ command: `echo ${'x'.repeat(200_000)}` }), [
      false,
      'The command is too long: write it to a file.',
    ])
  },
)

test('a tool process has an environment of its own, and no input', { timeout }, async (t) => {
  process.env['AGENT_ORC_WORKER_TOKEN'] = 'canary'
  t.after(() => delete process.env['AGENT_ORC_WORKER_TOKEN'])
  const { call, workspace } = await startTools(t)
  const { content } = await call('shell', { command: 'env -0 | tr "\\0" "\\n"; cat; echo end' })
  const lines = content.split('\n')
  assert.doesNotMatch(content, /canary/)
  const names = lines.filter((line) => line.includes('=')).map((line) => line.split('=')[0]!)
  assert.deepEqual(names.toSorted(), ['HOME', 'LANG', 'PATH', 'PWD', 'SHLVL', 'TMPDIR', '_'])
  assert.ok(lines.includes(`HOME=${workspace}`))
})

test('of a long output the beginning and the end are kept, with a note of what is missing', { timeout }, async (t) => {
  const { call } = await startTools(t)
  const { ok, content } = await call('shell', { command: 'echo first; yes middle | head -c 50000000; echo; echo last' })
  assert.ok(ok)
  assert.match(content, /^first\nmiddle\n/)
  assert.match(content, /\n\[\d+ bytes are left out here\]\n/)
  assert.match(content, /\nlast\n\[Exit code 0\.\]$/)
  assert.ok(content.length < headBytes + tailBytes + 200, String(content.length))
  const left = Number(/\[(\d+) bytes are left out/.exec(content)![1])
  assert.equal(left, 'first\n'.length + 50_000_000 + '\nlast\n'.length - headBytes - tailBytes)
})

const tree =
  'sleep 600 & echo $! > child; (sleep 600 & echo $! > grandchild; wait) & echo $$ > self; trap "" TERM INT; wait'

test('a command that takes too long is killed with everything that it started', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  const { ok, content } = await call('shell', { command: `echo begun; ${tree}`, timeoutSeconds: 0.5 })
  assert.deepEqual([ok, content], [false, 'begun\n[It was killed after 0.5 s.]'])
  const pids = ['child', 'grandchild', 'self'].map((name) => Number(readFileSync(join(workspace, name), 'utf8')))
  for (const pid of pids) await until(() => !isAlive(pid), `${pid} is gone`)
})

test('a call that is stopped leaves nothing behind', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  const abort = new AbortController()
  const result = call('shell', { command: tree }, { signal: abort.signal })
  const pids = () => ['child', 'grandchild', 'self'].map((name) => pidIn(join(workspace, name)))
  await until(() => pids().every((pid) => pid > 0), 'it runs')
  abort.abort()
  assert.deepEqual(await result, { ok: false, content: '[It was stopped.]' })
  for (const pid of pids()) await until(() => !isAlive(pid), `${pid} is gone`)
})

test('what a command leaves in the background ends with it, and is not waited for', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  const { ok, content } = await call('shell', { command: 'sleep 600 & echo $! > child; echo done' })
  assert.deepEqual([ok, content], [true, 'done\n[Exit code 0.]'])
  const pid = Number(readFileSync(join(workspace, 'child'), 'utf8'))
  await until(() => !isAlive(pid), 'it is gone')
  // A process that left the group holds the pipe open.
  const left = await call('shell', { command: 'setsid sleep 3 & echo done' }, { timeoutMs: 20_000 })
  assert.deepEqual(left, { ok: true, content: 'done\n[Exit code 0.]' })
})

const base64 = (text: string): string => Buffer.from(text).toString('base64')

test('a script runs by its shebang or its extension, from the folder that its files are in', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  const files = [
    { path: 'scripts/a.sh', data: base64('echo "sh $1 $2"; cat data/x; pwd') },
    { path: 'scripts/b.js', data: base64('console.log("js", process.argv.slice(2).join("|"))') },
    { path: 'scripts/c', data: base64('#!/bin/sh -e\nfalse\necho unreachable\n'), executable: true },
    { path: 'scripts/d.txt', data: base64('nothing') },
    { path: 'scripts/e.py', data: base64('import sys; print("py", sys.argv[1:])') },
    { path: 'data/x', data: base64('bytes\n') },
  ]
  const run = async (path: string, args: string[] = []) => {
    const { ok, content } = await call('run_script', { folder: '.skills/demo', files, path, args })
    return [ok, content]
  }
  const cwd = join(workspace, '.skills/demo')
  assert.deepEqual(await run('scripts/a.sh', ['one two', '$HOME']), [
    true,
    `sh one two $HOME\nbytes\n${cwd}\n[Exit code 0.]`,
  ])
  assert.deepEqual(await run('scripts/b.js', ['a', 'b']), [true, 'js a|b\n[Exit code 0.]'])
  assert.deepEqual(await run('scripts/c'), [false, '[Exit code 1.]'])
  const [, untold] = await run('scripts/d.txt')
  assert.match(String(untold), /has no shebang line and ends in none of \.sh, \.py, \.js/)
  if (existsSync('/usr/bin/python3'))
    assert.deepEqual(await run('scripts/e.py', ['x']), [true, "py ['x']\n[Exit code 0.]"])
  assert.deepEqual(await run('scripts'), [false, "'scripts' is no regular file."])
  assert.deepEqual(await run('../../a.sh'), [false, "'../../a.sh' is not inside the folder of the script."])
  const escaping = await call('run_script', {
    folder: '.skills/x',
    files: [{ path: '../demo/y', data: '' }],
    path: 'y',
  })
  assert.equal(escaping.content, "'../demo/y' is not inside the folder of the script.")
})

test('a script of the workspace itself is run, and stopped after its time', { timeout }, async (t) => {
  const { call } = await startTools(t)
  await call('write_file', { path: 'mine.sh', content: 'echo begun; sleep 600' })
  const { content } = await call('run_script', { path: 'mine.sh', timeoutSeconds: 0.3 })
  assert.equal(content, 'begun\n[It was killed after 0.3 s.]')
})
