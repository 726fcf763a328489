import { type StaticDecode, type TObject, Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { type TenantList, Tenants } from './tenant-list.ts'
import { type AppError, type ErrorTable, errorTable } from './errors.ts'
import { definePlugin, type Plugin, slot } from '../plugin.ts'

/** The state of a sandbox. A lease adds `unknown`: the substrate could not be reached. Specification 2.12. */
export type SandboxState = 'starting' | 'running' | 'paused' | 'gone'

/** Limits of one sandbox; what a provider cannot enforce it refuses at launch instead of ignoring it. */
export interface SandboxResources {
  readonly memoryMb?: number
  readonly cpus?: number
  /** Processes and threads at once. */
  readonly pids?: number
  /** Size of `/tmp` and the like; the workspace is bounded by its volume. */
  readonly diskMb?: number
}

/** One worker to start, in a sandbox of its own. */
export interface LaunchOrder {
  /** Drawn by the runner for this launch, `ao-` and 16 of a-z0-9: a label that any substrate takes. */
  readonly name: string
  /** The runner's hash: with it a restarted runner finds what its former process left. */
  readonly owner: string
  readonly tenantId: string
  /** The session, or the slot of a warm pool that no session has yet. The workspace is named after it. */
  readonly sessionId: string
  /** `sandbox.template` of the profile: an image, a template, a named command; the provider's own default by default. */
  readonly template?: string
  readonly resources: SandboxResources
  /** Where workers reach the runner over the network. A provider that gives them another way says so in `Launched`. */
  readonly runnerUrl: string
  /**
   * The worker's environment without `AGENT_ORC_RUNNER_URL`, which the provider adds, as it does `AGENT_ORC_WORKSPACE` and
   * `AGENT_ORC_STATE_DIR` when the places are of its choosing. It is complete: nothing of the runner's own environment may
   * come with it.
   */
  readonly env: Readonly<Record<string, string>>
  /** Starts our worker on this machine, for providers that run it here. */
  readonly command: readonly string[]
}

export interface Launched {
  /** The substrate's name for it; a label of at most 128 characters. */
  readonly sandboxId: string
  /** The runner's address as the worker sees it; `order.runnerUrl` by default. */
  readonly runnerUrl?: string
}

/**
 * Where workers of sessions run. Every method may be called twice for the same sandbox, and after it is gone. What fails
 * because the substrate cannot be reached rejects with anything; a sandbox that no longer exists is `sandboxGone`.
 */
export interface SandboxProvider {
  readonly contract: 'sandbox/1'
  /**
   * Starts a worker and resolves when the substrate has taken it; the worker then polls by itself. Nothing is left behind
   * when it rejects or when `signal` aborts. AppError 400 `invalid_sandbox` for a template or a limit it cannot serve.
   */
  launch(order: LaunchOrder, signal: AbortSignal): Promise<Launched>
  /** The live state. An id that the substrate does not know is `gone`. */
  status(sandboxId: string, signal?: AbortSignal): Promise<SandboxState>
  /** Stops it using CPU; its files are kept. Whether its memory is kept depends on the substrate. */
  pause(sandboxId: string): Promise<void>
  /** A substrate that starts the worker anew does it with `order`, whose environment has a fresh token. */
  resume(sandboxId: string, order: LaunchOrder): Promise<void>
  /** Ends the sandbox and removes its files. */
  destroy(sandboxId: string): Promise<void>
  /**
   * How many bytes of disk the files of sandboxes take, those of one that has ended by itself included: Infinity where they cannot be
   * counted in reasonable time, nothing for one that is not known. Asked again and again in the background. A provider that cannot
   * tell leaves it out; its sandboxes are bounded by their volumes then.
   */
  diskUsage?(sandboxIds: readonly string[]): Promise<ReadonlyMap<string, number>>
  /** Lists the sandboxes of an owner, paused ones included. Needed where sandboxes outlive the runner's process. */
  list?(owner: string): Promise<readonly string[]>
}
export const SandboxProviders = slot<SandboxProvider>('runner.sandbox-providers')
/** The tenants that may use each provider, by its name; a provider that is not listed is for no tenant. */
export const SandboxTenants = slot<TenantList>('runner.sandbox-tenants')

const sandboxProviderErrors = errorTable('sandbox-providers', {
  sandboxGone: { status: 410, message: 'The sandbox is gone.' },
  invalidSandbox: {
    status: 400,
    about: 'The provider does not support a setting of `sandbox` in the profile; the sentence names it.',
  },
})
export const sandboxGone = (cause?: unknown): AppError => sandboxProviderErrors.sandboxGone({ cause })
export const invalidSandbox = (message: string): AppError => sandboxProviderErrors.invalidSandbox({ message })

export interface SandboxProviderContext<C> {
  readonly config: C
  readonly log: FastifyBaseLogger
  onStop(fn: () => Promise<void>): void
}

/** A sandbox provider as a plugin: `name` is what a profile's `sandbox.provider` says, and the substrate of runner info. */
export function defineSandboxProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  /** Besides those of every provider. */
  readonly errors?: ErrorTable
  /** Undefined: not configured, or this machine cannot do it; the runner then does not offer it. */
  create(ctx: SandboxProviderContext<StaticDecode<C>>): Promise<SandboxProvider | undefined>
}): Plugin {
  type Provides = { providers: typeof SandboxProviders; tenants: typeof SandboxTenants }
  return definePlugin<TObject, Record<never, never>, Provides>({
    name: `sandbox-${spec.name}`,
    config: Type.Object(
      { ...spec.config?.properties, tenants: Tenants('The tenants whose sessions may have a sandbox of it.') },
      { additionalProperties: false },
    ),
    provides: { providers: SandboxProviders, tenants: SandboxTenants },
    errors: [sandboxProviderErrors, ...(spec.errors ? [spec.errors] : [])],
    async setup(ctx) {
      const { tenants, ...config } = ctx.config as { readonly tenants: TenantList }
      if (tenants.empty) {
        ctx.log.info(`the sandbox provider '${spec.name}' is not offered: its setting tenants names none`)
        return { providers: {}, tenants: {} }
      }
      const { log } = ctx
      const provider = await spec.create({ config: config as StaticDecode<C>, log, onStop: (fn) => ctx.onStop(fn) })
      return provider
        ? { providers: { [spec.name]: provider }, tenants: { [spec.name]: tenants } }
        : { providers: {}, tenants: {} }
    },
  })
}

/** A delivery of a provider to `POST /api/sandbox-events/{provider}`. */
export interface SandboxDelivery {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** The body as it arrived, at most 64 KiB. */
  readonly body: Buffer
}

/** Reads a provider's deliveries in the conductor. It only ever invalidates what a runner has cached of a sandbox. */
export interface SandboxEventDecoder {
  /** Undefined when the delivery is not about a sandbox. AppError 400 when it cannot be read, 401 for a wrong signature. */
  decode(delivery: SandboxDelivery): { readonly sandboxId: string } | undefined
}
export const SandboxEventDecoders = slot<SandboxEventDecoder>('conductor.sandbox-event-decoders')
