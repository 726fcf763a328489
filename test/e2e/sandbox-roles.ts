import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { prepareMachine } from '../../providers/sandbox-local/bubblewrap/index.ts'
import { openHome } from '../../providers/sandbox-local/home.ts'
import { type Cluster, eventually, type Form, type Part, startCluster } from './cluster.ts'

/** A cluster whose runner starts workers on this machine, as plain processes unless `env` says otherwise. */
export async function startWithSandboxes(
  t: TestContext,
  form: Form,
  env: Record<string, string> = {},
  apart: readonly Part[] = [],
): Promise<Cluster> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-e2e-'))
  // When this process is root, sandboxes run as other users.
  await chmod(dir, 0o711)
  const settings = {
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    AGENT_ORC_SANDBOX_PROCESS: 'true',
    AGENT_ORC_SANDBOX_TENANTS: '*',
    AGENT_ORC_SANDBOX_DIR: dir,
    // Only this provider, whatever else this machine could run.
    AGENT_ORC_SANDBOX_PROVIDERS: 'process',
    ...env,
  }
  const cluster = await startCluster(t, form, { env: settings, apart })
  t.after(() => rm(dir, { recursive: true, force: true }))
  return cluster
}

export interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly result?: string
  readonly error?: { readonly code: string; readonly message: string }
  readonly events: readonly (Record<string, unknown> & { readonly type: string })[]
}

/** Has the agent of a session call the tool `shell`, and returns the answer. */
export async function shell(
  cluster: Cluster,
  command: string,
  sessionId?: string,
): Promise<{ said: string; sessionId: string }> {
  cluster.model.next({ toolCalls: [{ name: 'shell', arguments: { command } }] })
  cluster.model.next({ text: 'Done.' })
  const task = { profile: 'coder', prompt: 'Look around.', ...(sessionId === undefined ? {} : { sessionId }) }
  const run = await eventually('a runner takes it', async () => {
    const { status, body } = await cluster.api<Run>('POST', '/api/runs', task)
    return status === 202 && body
  })
  const ended = await eventually('the run is over', async () => {
    const { body } = await cluster.api<Run>('GET', `/api/runs/${run.runId}`)
    return body.status !== 'running' && body
  })
  assert.equal(ended.result, 'Done.', `${JSON.stringify(ended)}\n${cluster.output()}`)
  const result = ended.events.find(({ type }) => type === 'tool_result')
  return { said: JSON.stringify(result), sessionId: run.sessionId }
}

export interface Lease {
  readonly sessionId: string
  readonly state: string
  readonly sandboxId: string
  readonly warm?: boolean
}

/** Skips the test where there is no bubblewrap; with CI=true that is a failure instead. */
export async function hasBubblewrap(t: TestContext): Promise<boolean> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-look-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const home = await openHome({ passable: true })
  t.after(() => home.close())
  const reason = await prepareMachine(home, { cgroup: undefined, read: [] }).then(
    () => undefined,
    (error: Error) => error.message,
  )
  if (reason === undefined) return true
  if (process.env.CI === 'true') throw new Error(reason)
  t.skip(reason)
  return false
}
