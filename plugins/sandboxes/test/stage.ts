import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Registry } from 'prom-client'
import { definePlugin, everyTenant, linesOf, type TenantList } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { SandboxProviders, SandboxTenants } from '#contracts/sandbox'
import { VfsManager } from '#contracts/vfs-manager'
import { SandboxWorkers } from '#contracts/workers'
import { fake, testEnvelope, testKernel, type TestKernel, testProfile } from '#testing'
import sandboxes from '../index.ts'
import { createSubstrate, type Substrate } from './substrate.ts'

export interface Stage {
  readonly kernel: TestKernel
  readonly workers: SandboxWorkers
  readonly substrate: Substrate
  /** How many prepared workers wait. */
  waiting(): Promise<number>
}

export interface StageOptions {
  readonly config?: Readonly<Record<string, unknown>>
  readonly substrate?: Substrate
  /** Further substrates, by name. */
  readonly others?: Readonly<Record<string, Substrate>>
  /** True for a runner without a signing key for worker tokens. */
  readonly keyless?: boolean
  /** Who may use the substrates; every tenant unless given. */
  readonly tenants?: TenantList
  /** True for a runner without a sandbox provider. */
  readonly bare?: boolean
  readonly vfs?: VfsManager
}

/** The plugin on real sockets, and a substrate in memory called `box`. */
export async function stage(t: TestContext, options: StageOptions = {}): Promise<Stage> {
  const substrate = options.substrate ?? createSubstrate(t)
  const others = Object.entries(options.others ?? {}).map(([name, { provider }]) => [name, provider] as const)
  let workers: SandboxWorkers | undefined
  let metrics: Registry | undefined
  const grab = definePlugin({
    name: 'grab',
    requires: { workers: SandboxWorkers },
    async setup(ctx) {
      workers = ctx.deps.workers
      metrics = ctx.metrics
      return {}
    },
  })
  const config = {
    baseUrl: 'http://runner.test',
    lostAfter: '2s',
    ...(options.keyless ? {} : { signingKey: { current: randomBytes(32).toString('base64') } }),
    ...options.config,
  }
  const providers = options.bare ? {} : { box: substrate.provider, ...Object.fromEntries(others) }
  const tenants = Object.fromEntries(Object.keys(providers).map((name) => [name, options.tenants ?? everyTenant]))
  const plugins = [
    { name: 'sandboxes', plugin: sandboxes, config },
    fake(SandboxProviders, providers),
    fake(SandboxTenants, tenants),
    ...(options.vfs ? [fake(VfsManager, options.vfs)] : []),
    grab,
  ]
  const kernel = await testKernel(t, plugins, { listen: true, listeners: ['runner', 'workers'] })
  const waiting = async (): Promise<number> => {
    const gauge = await metrics!.getSingleMetric('runner_sandboxes')!.get()
    return gauge.values.find(({ labels }) => labels['state'] === 'warm')?.value ?? 0
  }
  return { kernel, workers: workers!, substrate, waiting }
}

export const sandboxed = (name = 'coder', over: Partial<Profile> = {}): Profile =>
  testProfile(name, { workerMode: 'sandbox', ...over })

export const newSession = (profile: Profile = sandboxed(), tenantId = 'acme'): RunnerSession => ({
  id: `sess-00000000-${randomBytes(4).toString('hex')}`,
  tenantId,
  profile,
  tools: [],
  status: 'idle',
  createdAt: '2026-01-01T00:00:00.000Z',
  lastUsedAt: '2026-01-01T00:00:00.000Z',
})

type Line = Readonly<Record<string, unknown>>

/** Runs a prompt as the runner does: prepares, then runs; resolves to the events, the one of the sandbox first. */
export async function play(
  workers: SandboxWorkers,
  session: RunnerSession,
  prompt: string,
  { resume = false, signal = new AbortController().signal } = {},
): Promise<Line[]> {
  const prepared = await workers.prepare(session, { resume, onUsage() {} }, signal)
  try {
    const envelope = testEnvelope({
      sessionId: session.id,
      tenantId: session.tenantId,
      profile: session.profile,
      prompt,
      runId: `run-${randomBytes(4).toString('hex')}`,
      ...(resume ? { resume } : {}),
    })
    const lines: Line[] = prepared ? [prepared.event] : []
    for await (const chunk of workers.link(session).run(envelope, signal)) {
      for (const line of linesOf(chunk)) lines.push(JSON.parse(line.toString()) as Line)
    }
    return lines
  } finally {
    prepared?.over()
  }
}

export const startOf = (lines: readonly Line[]): unknown => lines[0]?.['start']
export const answerOf = (lines: readonly Line[]): unknown => lines.at(-1)?.['text'] ?? lines.at(-1)?.['code']

/** Polls a condition; fails with the sentence when it never holds. */
export async function eventually(sentence: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let attempt = 0; attempt < 2_000; attempt++) {
    if (await holds()) return
    await sleep(5)
  }
  throw new Error(`never happened: ${sentence}`)
}
