// The worker of the sandbox suite: it polls as a worker does and answers tool commands. It imports nothing of this
// repository, so that any substrate with Node can run this one file.
import { execFile, spawn } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { request } from 'node:http'
import { resolve } from 'node:path'

interface Command {
  readonly id: number
  readonly kind: string
  readonly callId: string
  readonly name: string
  readonly input: Readonly<Record<string, string & readonly string[]>>
}

// This process has no role file: its environment is what the suite checks.
const { env } = process
const base = `${env['AGENT_ORC_RUNNER_URL']}/runner/worker/${encodeURIComponent(env['AGENT_ORC_SESSION_ID'] ?? '')}`
const workspace = env['AGENT_ORC_WORKSPACE'] ?? process.cwd()
const inWorkspace = (path: string): string => resolve(workspace, path)
/** A copy that `fork` started. It only polls, which shows whether it runs. */
const copy = process.argv[2] === 'copy'

const tools: Readonly<Record<string, (input: Command['input']) => unknown>> = {
  environment: () => env,
  write_file: ({ path, content }) => writeFile(inWorkspace(path!), content!),
  read_file: ({ path }) => readFile(inWorkspace(path!), 'utf8').catch((error: NodeJS.ErrnoException) => error.code),
  run: ({ command }) => run(command!),
  fork: () => void spawn(process.execPath, [process.argv[1]!, 'copy'], { detached: true, stdio: 'ignore' }).unref(),
  exit: () => process.exit(1),
}

let after = 0
for (;;) {
  const answer = await call('GET', copy ? '/poll?copy=1' : `/poll?after=${after}&tools=1&wait=20`).catch(() => '')
  // The runner could not be reached, or had no command after holding the poll for a moment.
  if (answer === '') await moment()
  else {
    for (const command of (JSON.parse(answer) as { commands: Command[] }).commands) {
      after = command.id
      if (command.kind === 'shutdown') process.exit(0)
      if (command.kind === 'tool') void answerTool(command)
    }
  }
}

async function answerTool({ callId, name, input }: Command): Promise<void> {
  const result = await Promise.resolve(tools[name]?.(input)).catch(String)
  const answer = JSON.stringify({ ok: true, content: JSON.stringify(result ?? null) })
  // The tool may have used up all connections, and a lost answer would keep the suite waiting, so retry.
  while (
    await call('PUT', `/tools/${encodeURIComponent(callId)}`, answer).then(
      () => false,
      () => true,
    )
  )
    await moment()
}

function moment(): Promise<void> {
  return new Promise((done) => void setTimeout(done, 20))
}

/** Runs a program; resolves to its output and how it ended. */
function run([file = '', ...args]: readonly string[]): Promise<unknown> {
  return new Promise((done) => {
    execFile(file, args, { maxBuffer: 1024 * 1024 }, (error, stdout, stderr) =>
      done({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr }),
    )
  })
}

function call(method: string, path: string, body?: string): Promise<string> {
  return new Promise((done, fail) => {
    const headers = {
      authorization: `Bearer ${env['AGENT_ORC_WORKER_TOKEN']}`,
      'x-agent-orc-worker-protocol': '1',
      'content-type': 'application/json',
    }
    // One connection per request, so that no connection goes stale during a pause.
    const sent = request(base + path, { method, headers, agent: false }, (response) => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', (chunk: string) => (text += chunk))
      response.on('end', () => done(text))
      response.on('error', fail)
    })
    sent.on('error', fail)
    sent.end(body)
  })
}
