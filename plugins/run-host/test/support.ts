import type { TestContext } from 'node:test'
import type { Registry } from 'prom-client'
import { definePlugin, type Plugin, type TenantList } from '#kernel'
import { ModelTenants } from '#contracts/model'
import type { RuntimeEvent } from '#contracts/run-event'
import { type Runtime, Runtimes } from '#contracts/runtime'
import { LocalSidecars, type SidecarLink } from '#contracts/sidecar'
import { fake, testKernel, type TestKernel } from '#testing'
import runHost from '../index.ts'

export interface Host {
  readonly kernel: TestKernel
  readonly link: SidecarLink
  readonly metrics: Registry
}

export interface HostOptions {
  readonly mode?: string
  /** Who may use the models of a provider. */
  readonly models?: Record<string, TenantList>
  readonly listen?: boolean
  /** No waiting for runners that are not there, unless the test is about it. */
  readonly drain?: string
  /** Further settings. */
  readonly config?: object
}

/** A kernel with run-host on the given runtimes, and its in-process link. */
export async function hostOf(
  t: Pick<TestContext, 'after'>,
  runtimes: Record<string, Runtime>,
  { mode = 'all', models = {}, listen = false, drain = '0s', config: more }: HostOptions = {},
): Promise<Host> {
  let link: SidecarLink | undefined
  let metrics: Registry | undefined
  const probe: Plugin = definePlugin({
    name: 'probe',
    requires: { links: LocalSidecars },
    async setup(ctx) {
      link = ctx.deps.links.get('local')
      metrics = ctx.metrics
      return {}
    },
  })
  const config = { mode, ...more, ...(drain === 'as shipped' ? {} : { drain }) }
  const entry = { name: 'run-host', plugin: runHost, config }
  const kernel = await testKernel(t, [fake(Runtimes, runtimes), fake(ModelTenants, models), entry, probe], {
    listen,
    listeners: ['sidecar'],
  })
  return { kernel, link: link!, metrics: metrics! }
}

type Script = (
  prompt: string,
  signal: AbortSignal,
  sessionId: string,
) => AsyncIterable<RuntimeEvent> | Iterable<RuntimeEvent>

/** A runtime that does what the script says, however wrong that is. */
export const scripted = (script: Script, more: Partial<Runtime> = {}): Runtime => ({
  contract: 'runtime/1',
  async *run({ prompt, sessionId }, signal) {
    yield* script(prompt, signal, sessionId)
  },
  ...more,
})

export const says = (text: string): RuntimeEvent => ({ type: 'assistant', text, delta: true })
export const result = (text: string): RuntimeEvent => ({ type: 'result', text, finishReason: 'stop' })

export const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener('abort', () => resolve())))

export const never = (): Promise<never> => new Promise(() => {})
