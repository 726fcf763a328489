import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir, readFile, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { RunEvent } from '#contracts/run-event'
import { workerVariables } from '#contracts/wire/worker'
import { terminalOf, testEnvelope } from '#testing'
import { type ScriptedRunner, startScriptedRunner } from './scripted-runner.ts'
import { folder, newSession, until } from './support.ts'

const timeout = 90_000
const file = (path: string): string => fileURLToPath(new URL(`../../../${path}`, import.meta.url))

interface WorkerProcess {
  readonly child: ChildProcess
  readonly stderr: () => string
  readonly exit: Promise<number | NodeJS.Signals | null>
}

/** The worker role as a provider starts it, with no other environment variables. */
function startProcess(t: TestContext, env: Readonly<Record<string, string>>, role = 'sidecar'): WorkerProcess {
  const child = spawn(process.execPath, [file('cli/agent-orc.js'), 'start', '--config', file(`config/${role}.yaml`)], {
    env: { PATH: process.env['PATH'], LOG_LEVEL: 'warn', ...env },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  t.after(() => child.kill('SIGKILL'))
  let stderr = ''
  child.stderr!.on('data', (chunk) => (stderr += chunk))
  const exit = once(child, 'close').then(([code, signal]) => (code ?? signal) as number | NodeJS.Signals | null)
  return { child, stderr: () => stderr, exit }
}

const variables = (url: string, sessionId: string, more: Readonly<Record<string, string>> = {}) => ({
  [workerVariables.runnerUrl]: url,
  [workerVariables.token]: 'token-1',
  [workerVariables.sessionId]: sessionId,
  ...more,
})

/** The folders of a test's worker. */
async function places(t: TestContext): Promise<Record<string, string>> {
  const path = await folder(t)
  return { [workerVariables.stateDir]: join(path, 'state'), [workerVariables.workspace]: join(path, 'workspace') }
}

async function ask(runner: ScriptedRunner, sessionId: string, prompt: string, resume = false): Promise<RunEvent[]> {
  const envelope = testEnvelope({ sessionId, prompt, resume, profile: { model: 'builtin/demo' } })
  runner.order(sessionId, { kind: 'run', envelope })
  return runner.run(envelope.runId)
}
const answer = async (...question: Parameters<typeof ask>): Promise<string> => {
  const last = terminalOf(await ask(...question))
  return last.type === 'result' ? last.text : `error ${last.code}`
}

for (const role of ['sidecar', 'worker']) {
  test(
    `config/${role}.yaml with the variables of a worker polls, opens no port and ends with 0`,
    { timeout },
    async (t) => {
      const runner = await startScriptedRunner(t)
      const sessionId = newSession()
      const { child, exit, stderr } = startProcess(t, variables(runner.url, sessionId, await places(t)), role)
      await runner.until(() => runner.polls[0])
      assert.match(await answer(runner, sessionId, 'who are you?'), /demo responder/)
      assert.deepEqual(await listeningPorts(child.pid!), [])
      runner.order(sessionId, { kind: 'shutdown' })
      assert.equal(await exit, 0, stderr())
      assert.equal(stderr(), '')
    },
  )
}

/** The TCP sockets of a process in state LISTEN. */
async function listeningPorts(pid: number): Promise<string[]> {
  const sockets = new Set<string>()
  for (const fd of await readdir(`/proc/${pid}/fd`)) {
    const target = await readlink(`/proc/${pid}/fd/${fd}`).catch(() => '')
    const inode = /^socket:\[(\d+)\]$/.exec(target)?.[1]
    if (inode !== undefined) sockets.add(inode)
  }
  const tables = await Promise.all(
    ['tcp', 'tcp6'].map((name) => readFile(`/proc/${pid}/net/${name}`, 'utf8').catch(() => '')),
  )
  return tables
    .flatMap((table) => table.split('\n').slice(1))
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === '0A' && sockets.has(fields[9]!))
    .map((fields) => fields[1]!)
}

test('a second process goes on with the conversation, from disk and from the runner', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const sessionId = newSession()
  const here = await places(t)
  const first = startProcess(t, variables(runner.url, sessionId, here))
  await answer(runner, sessionId, 'remember that my name is Marmalade')
  const stored = await runner.until(() => runner.states.get(sessionId))
  first.child.kill('SIGKILL')
  await first.exit
  // The runner has lost its copy.
  runner.states.delete(sessionId)
  const second = startProcess(t, variables(runner.url, sessionId, here))
  assert.match(await answer(runner, sessionId, 'what did I say before?', true), /Marmalade/)
  second.child.kill('SIGKILL')
  await second.exit
  // Another machine has no copy on its disk.
  runner.states.set(sessionId, stored)
  startProcess(t, variables(runner.url, sessionId, await places(t)))
  assert.match(await answer(runner, sessionId, 'what did I say before?', true), /Marmalade/)
})

test('a worker without its session, or refused, says so in one sentence and ends with 1', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const { [workerVariables.sessionId]: _, ...without } = variables(runner.url, 's1')
  const nameless = startProcess(t, without)
  assert.equal(await nameless.exit, 1)
  assert.match(nameless.stderr(), /set AGENT_ORC_SESSION_ID \(.*worker\.yaml:\d+\)\n$/)
  assert.doesNotMatch(nameless.stderr(), /^\s+at /m)
  runner.intercept((_request, response) => {
    response.writeHead(401).end('{"error":"invalid or missing worker token: superseded"}')
    return true
  })
  const superseded = startProcess(t, variables(runner.url, newSession(), await places(t)))
  assert.equal(await superseded.exit, 1)
  assert.match(superseded.stderr(), /The runner refuses this worker: invalid or missing worker token: superseded\n/)
  assert.doesNotMatch(superseded.stderr(), /^\s+at |token-1/m)
})

test('a worker that was frozen goes on as if nothing had happened', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const sessionId = newSession()
  const { child } = startProcess(t, variables(runner.url, sessionId, await places(t)))
  await runner.until(() => runner.polls[0])
  child.kill('SIGSTOP')
  await until(async () => (await readFile(`/proc/${child.pid}/stat`, 'utf8')).includes(') T '), 'it is frozen')
  const answered = answer(runner, sessionId, 'who are you?')
  // The connections die while the worker is stopped and cannot notice.
  await runner.stop()
  await runner.restart()
  child.kill('SIGCONT')
  assert.match(await answered, /demo responder/)
})

test('SIGTERM ends a worker with 0, and its conversation is where the next one finds it', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const sessionId = newSession()
  const { child, exit } = startProcess(t, variables(runner.url, sessionId, await places(t)))
  await answer(runner, sessionId, 'hello')
  child.kill('SIGTERM')
  assert.equal(await exit, 0)
  assert.ok(runner.states.get(sessionId))
})

test('tools act in the workspace, and know nothing of the worker', { timeout }, async (t) => {
  const runner = await startScriptedRunner(t)
  const sessionId = newSession()
  const here = await places(t)
  const { child } = startProcess(t, variables(runner.url, sessionId, { ...here, CANARY: 'in the environment' }))
  const call = async (name: string, input: Record<string, unknown>) => {
    const callId = `${name}-${runner.results.size}`
    runner.order(sessionId, { kind: 'tool', callId, name, input, timeoutMs: 30_000 })
    return runner.until(() => runner.results.get(callId))
  }
  assert.deepEqual((await call('write_file', { path: 'a/b.txt', content: 'hello' })).ok, true)
  const { ok, content } = await call('shell', { command: 'cat a/b.txt; echo; pwd; env | sort | cut -d= -f1' })
  const workspace = here[workerVariables.workspace]!
  const names = ['HOME', 'LANG', 'PATH', 'PWD', 'SHLVL', 'TMPDIR', '_']
  assert.ok(ok)
  assert.equal(content, ['hello', workspace, ...names, '[Exit code 0.]'].join('\n'))
  // The command cannot find the token in the worker's /proc entry either.
  const looked = await call('shell', {
    command: `tr '\\0' '\\n' < /proc/${child.pid}/environ | grep -c -e CANARY -e token-1`,
  })
  assert.equal(looked.content, '1\n[Exit code 0.]', 'what is left is what no secret is')
})
