import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import type { SkillContent } from '#contracts/skills'
import { type SessionSandbox, type ToolContext, Toolkit, type ToolResult } from '#contracts/tools'
import { testKernel, testToolContext } from '#testing'
import sandboxes from '../plugins/sandboxes/index.ts'
import skillCache from '../plugins/skills/runner/index.ts'
import tools from '../plugins/tools/index.ts'
import { createTools } from '../plugins/worker/tools/tools.ts'

/** The tools of the runner with those of a worker behind them: what a sandbox adds is tested where sandboxes are. */
async function staged(t: TestContext) {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-sandbox-tools-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const got: { toolkit?: Toolkit } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { toolkit: Toolkit },
    async setup(ctx) {
      Object.assign(got, ctx.deps)
      return {}
    },
  })
  const workspace = join(folder, 'workspace')
  await testKernel(t, [tools, sandboxes, skillCache, grab], { listeners: ['runner', 'workers'] })
  const settings = { workspace, path: process.env['PATH']!, lang: 'C.UTF-8', tmpDir: '/tmp' }
  const worker = await createTools(settings, pino({ level: 'silent' }))
  const limits: number[] = []
  const sandbox: SessionSandbox = {
    call(name, input, timeoutMs) {
      limits.push(timeoutMs)
      return worker.call(name, input, { signal: new AbortController().signal, timeoutMs })
    },
    settleFiles: async () => undefined,
  }
  const call = (name: string, input: object, context: Partial<ToolContext> = {}): Promise<ToolResult> =>
    got.toolkit!.invoke(name, input, testToolContext({ sandbox, ...context }))
  return { call, workspace, limits }
}

test('files and commands of a session meet in its workspace', async (t) => {
  const { call, workspace } = await staged(t)
  assert.equal((await call('write_file', { path: 'notes/a.txt', content: 'one\ntwo\nthree\n' })).ok, true)
  assert.equal((await call('write_file', { path: 'notes/a.txt', content: 'four\n', append: true })).ok, true)
  assert.equal(await readFile(join(workspace, 'notes/a.txt'), 'utf8'), 'one\ntwo\nthree\nfour\n')
  assert.match((await call('read_file', { path: 'notes/a.txt', offset: 1, limit: 2 })).content, /^two\nthree/)
  assert.match((await call('list_files', {})).content, /notes\/a\.txt/)
  const counted = await call('shell', { command: 'wc -l < a.txt', cwd: 'notes' })
  assert.deepEqual([counted.ok, counted.content.trim()], [true, '4\n[Exit code 0.]'])
})

test('a session without a sandbox is told so by every tool', async (t) => {
  const { call } = await staged(t)
  const none = { sandbox: undefined } as unknown as Partial<ToolContext>
  for (const [name, input] of [
    ['shell', { command: 'id' }],
    ['read_file', { path: 'a' }],
    ['write_file', { path: 'a', content: '' }],
    ['list_files', {}],
  ] as const) {
    const result = await call(name, input, none)
    assert.equal(result.ok, false)
    assert.match(result.content, /has no sandbox/)
  }
})

test('a command is stopped in its time, and that time reaches the sandbox with a little more', async (t) => {
  const { call, limits } = await staged(t)
  const slow = await call('shell', { command: 'echo begun; sleep 60', timeoutSeconds: 1 })
  assert.equal(slow.ok, false)
  assert.match(slow.content, /begun/)
  assert.match(slow.content, /killed after 1 s/)
  assert.deepEqual(limits, [6_000])
  assert.match((await call('shell', { command: 'id', timeoutSeconds: 601 })).content, /timeoutSeconds must be <= 600/)
})

/** A skill of a session, as a conductor has brought it. */
const greet: SkillContent = {
  name: 'greet',
  description: 'Greets.',
  digest: 'a'.repeat(64),
  body: '# Greet',
  files: [
    { path: 'SKILL.md', bytes: Buffer.from('# Greet'), executable: false },
    { path: 'words.txt', bytes: Buffer.from('Hello'), executable: false },
    { path: 'logo.png', bytes: Buffer.from([0x89, 0x50, 0, 0xff]), executable: false },
    {
      path: 'scripts/greet.sh',
      bytes: Buffer.from('#!/bin/sh\necho "$(cat words.txt), $1!"\n'),
      executable: true,
    },
  ],
}

test('a script of a skill runs in the sandbox, from the folder of its skill', async (t) => {
  const { call } = await staged(t)
  const greeted = await call(
    'run_skill_script',
    { skill: 'greet', script: 'scripts/greet.sh', args: ['Ada; id'] },
    { skills: [greet] },
  )
  assert.deepEqual([greeted.ok, greeted.content.trim()], [true, 'Hello, Ada; id!\n[Exit code 0.]'])
})

test('a skill is read whole, its text files are shown, and others are put into the sandbox', async (t) => {
  const { call, workspace } = await staged(t)
  const mine = { skills: [greet] }
  const { content } = await call('skill_read', { name: 'greet' }, mine)
  assert.match(content, /^# greet\n\nGreets\.\n\n# Greet\n\nFiles of this skill:\n- words\.txt \(5 bytes\)/)
  assert.match(content, /scripts\/greet\.sh \(\d+ bytes, executable\)/)
  assert.deepEqual(await call('skill_resource', { name: 'greet', path: 'words.txt' }, mine), {
    ok: true,
    content: 'Hello',
  })
  assert.deepEqual(await call('skill_resource', { name: 'greet', path: 'logo.png' }, mine), {
    ok: true,
    content: 'The file is in your sandbox: .skills/greet/logo.png',
  })
  assert.deepEqual([...(await readFile(join(workspace, '.skills/greet/logo.png')))], [0x89, 0x50, 0, 0xff])
  const without = await call('skill_resource', { name: 'greet', path: 'logo.png' }, {
    ...mine,
    sandbox: undefined,
  } as never)
  assert.match(without.content, /is no text, or too long to be shown, and this session has no sandbox/)
})

test('a skill as large as may be is answered in bounded texts, and its large files are put into the sandbox', async (t) => {
  const { call, workspace } = await staged(t)
  const large = { path: 'large.txt', bytes: Buffer.alloc(8 * 1024 * 1024, 'long '), executable: false }
  const many = Array.from({ length: 499 }, (_, i) => ({
    ...large,
    path: `${'p'.repeat(500)}${i}`,
    bytes: Buffer.alloc(1),
  }))
  const skills = [{ ...greet, body: 'b'.repeat(128 * 1024), files: [large, ...many] }]
  const most = 256 * 1024
  const none = { skills, sandbox: undefined } as never
  for (const [name, input] of [
    ['skill_read', { name: 'greet' }],
    ['skill_resource', { name: 'greet', path: 'large.txt' }],
    ['skill_resource', { name: 'greet', path: 'none' }],
  ] as const) {
    const { content } = await call(name, input, none)
    assert.ok(Buffer.byteLength(content) <= most, `${name} ${JSON.stringify(input)}`)
  }
  const { content } = await call('skill_resource', { name: 'greet', path: 'large.txt' }, { skills })
  assert.equal(content, 'The file is in your sandbox: .skills/greet/large.txt')
  assert.equal((await readFile(join(workspace, '.skills/greet/large.txt'))).equals(large.bytes), true)
})

test('only skills of the session, and only files of the skill, are read and run', async (t) => {
  const { call } = await staged(t)
  const mine = { skills: [greet, { ...greet, name: 'other' }] }
  for (const name of ['secret', '../secret', 'Greet']) {
    const refusal = { ok: false, content: `This session has no skill '${name}'; it has: greet, other.` }
    assert.deepEqual(await call('run_skill_script', { skill: name, script: 'scripts/greet.sh' }, mine), refusal)
    assert.deepEqual(await call('skill_read', { name }, mine), refusal)
    assert.deepEqual(await call('skill_resource', { name, path: 'words.txt' }, mine), refusal)
  }
  assert.match((await call('skill_read', { name: 'greet' })).content, /has no skill 'greet'; it has: none\.$/)
  for (const path of ['scripts/none.sh', '../secret/scripts/run.sh', '/bin/sh']) {
    const refused = await call('run_skill_script', { skill: 'greet', script: path }, mine)
    assert.equal(refused.ok, false)
    assert.match(refused.content, /its scripts: scripts\/greet\.sh\.$/)
    assert.match(
      (await call('skill_resource', { name: 'greet', path }, mine)).content,
      /^The skill 'greet' has no file/,
    )
  }
})
