import assert from 'node:assert/strict'
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import { type SessionSandbox, type ToolContext, Toolkit, type ToolResult } from '#contracts/tools'
import { testKernel, testToolContext } from '#testing'
import sandboxes from '../plugins/sandboxes/index.ts'
import skillFolders from '../plugins/skill-folders/index.ts'
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
  const skills = join(folder, 'skills')
  const folders = { name: 'skill-folders', plugin: skillFolders, config: { dir: skills } }
  await testKernel(t, [tools, sandboxes, folders, grab], { listeners: ['runner', 'workers'] })
  const settings = { workspace, path: process.env['PATH']!, lang: 'C.UTF-8', tmpDir: '/tmp' }
  const worker = await createTools(settings, pino({ level: 'silent' }))
  const limits: number[] = []
  const sandbox: SessionSandbox = {
    call(name, input, timeoutMs) {
      limits.push(timeoutMs)
      return worker.call(name, input, { signal: new AbortController().signal, timeoutMs })
    },
  }
  const call = (name: string, input: object, context: Partial<ToolContext> = {}): Promise<ToolResult> =>
    got.toolkit!.invoke(name, input, testToolContext({ sandbox, ...context }))
  const addSkill = async (path: string, text: string, mode = 0o644): Promise<void> => {
    const file = join(skills, path)
    await mkdir(dirname(file), { recursive: true })
    await writeFile(file, text)
    await chmod(file, mode)
  }
  return { call, workspace, limits, addSkill }
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

test('a script of a skill runs in the sandbox, from the folder of its skill', async (t) => {
  const { call, addSkill } = await staged(t)
  await addSkill('greet/SKILL.md', '# Greet')
  await addSkill('greet/words.txt', 'Hello')
  await addSkill('greet/scripts/greet.sh', '#!/bin/sh\necho "$(cat words.txt), $1!"\n', 0o755)
  const mine = { skills: ['greet'] }
  const greeted = await call(
    'run_skill_script',
    { skill: 'greet', script: 'scripts/greet.sh', args: ['Ada; id'] },
    mine,
  )
  assert.deepEqual([greeted.ok, greeted.content.trim()], [true, 'Hello, Ada; id!\n[Exit code 0.]'])
})

test('only skills of the profile, and only files of the skill, are run', async (t) => {
  const { call, addSkill } = await staged(t)
  await addSkill('greet/SKILL.md', '# Greet')
  await addSkill('greet/scripts/greet.sh', '#!/bin/sh\necho hi\n', 0o755)
  await addSkill('secret/SKILL.md', '# Secret')
  await addSkill('secret/scripts/run.sh', '#!/bin/sh\necho secret\n', 0o755)
  const mine = { skills: ['greet', 'gone'] }
  for (const skill of ['secret', 'gone', '../secret']) {
    const refused = await call('run_skill_script', { skill, script: 'scripts/run.sh' }, mine)
    assert.deepEqual(refused, {
      ok: false,
      content: `There is no skill '${skill}' in this session; it has: greet, gone.`,
    })
  }
  for (const script of ['scripts/none.sh', '../secret/scripts/run.sh', '/bin/sh']) {
    const refused = await call('run_skill_script', { skill: 'greet', script }, mine)
    assert.equal(refused.ok, false)
    assert.match(refused.content, /its scripts: scripts\/greet\.sh\.$/)
  }
})
