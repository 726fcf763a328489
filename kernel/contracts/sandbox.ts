import { type StaticDecode, type TObject, Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { type TenantList, Tenants } from './tenant-list.ts'
import { type AppError, type ErrorTable, errorTable } from './errors.ts'
import { definePlugin, type Plugin, slot } from '../plugin.ts'

/** The state of a sandbox. A lease adds `unknown`: the substrate could not be reached. Specification 2.12. */
export type SandboxState = 'starting' | 'running' | 'paused' | 'gone'

/** Limits of one sandbox. A provider refuses a limit that it cannot enforce at launch instead of ignoring it. */
export interface SandboxResources {
  readonly memoryMb?: number
  readonly cpus?: number
  /** The most processes and threads at once. */
  readonly pids?: number
  /** MB of `/tmp` and similar folders. The workspace is limited by its volume. */
  readonly diskMb?: number
}

/** One worker to start, in a sandbox of its own. */
export interface LaunchOrder {
  /** Drawn by the runner for this launch: `ao-` and 16 characters of a-z0-9, a label that every substrate accepts. */
  readonly name: string
  /** The runner's hash, by which a restarted runner finds the sandboxes of its previous process. */
  readonly owner: string
  readonly tenantId: string
  /** The session, or a warm-pool slot that no session has yet. The workspace is named after it. */
  readonly sessionId: string
  /** `sandbox.template` of the profile: an image, a template, or a named command. Absent: the provider's default. */
  readonly template?: string
  readonly resources: SandboxResources
  /** The address of the runner for workers on the network. A provider that gives workers another address returns it in `Launched`. */
  readonly runnerUrl: string
  /**
   * The worker's complete environment, except `AGENT_ORC_RUNNER_URL`, which the provider adds, as well as `AGENT_ORC_WORKSPACE` and
   * `AGENT_ORC_STATE_DIR` when the provider chooses the places. Nothing of the runner's own environment may be added.
   */
  readonly env: Readonly<Record<string, string>>
  /** The command that starts our worker on this machine, for providers that run workers here. */
  readonly command: readonly string[]
}

export interface Launched {
  /** The substrate's name of the sandbox, a label of at most 128 characters. */
  readonly sandboxId: string
  /** The runner's address as the worker sees it. Absent: `order.runnerUrl`. */
  readonly runnerUrl?: string
}

/**
 * A place where the workers of sessions run. Every method may be called twice for the same sandbox, and after the sandbox is gone. A substrate that
 * cannot be reached may cause any error; a sandbox that no longer exists is `sandboxGone`.
 */
export interface SandboxProvider {
  readonly contract: 'sandbox/1'
  /**
   * Starts a worker, and resolves when the substrate has accepted it; the worker then polls by itself. When it rejects, or `signal` aborts, nothing
   * is left behind. AppError 400 `invalid_sandbox` for a template or a limit that the provider cannot serve.
   */
  launch(order: LaunchOrder, signal: AbortSignal): Promise<Launched>
  /** The live state. An id that the substrate does not know is `gone`. */
  status(sandboxId: string, signal?: AbortSignal): Promise<SandboxState>
  /** Stops the sandbox's CPU use and keeps its files. Whether its memory is kept depends on the substrate. */
  pause(sandboxId: string): Promise<void>
  /** Resumes the sandbox. A substrate that starts the worker anew uses `order`, whose environment has a fresh token. */
  resume(sandboxId: string, order: LaunchOrder): Promise<void>
  /** Ends the sandbox and removes its files. */
  destroy(sandboxId: string): Promise<void>
  /**
   * Bytes on disk of the sandboxes' files, including those of a sandbox that ended by itself. Infinity: not countable in reasonable time. Unknown
   * sandboxes are left out. It is called periodically in the background. A provider that cannot count omits the method; its sandboxes are then
   * limited by their volumes.
   */
  diskUsage?(sandboxIds: readonly string[]): Promise<ReadonlyMap<string, number>>
  /** Lists the sandboxes of an owner, including paused ones. Needed where sandboxes outlive the runner's process. */
  list?(owner: string): Promise<readonly string[]>
}
export const SandboxProviders = slot<SandboxProvider>('runner.sandbox-providers')
/** The tenants that may use each provider, by the provider's name. A provider that is not listed serves no tenant. */
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

/** A sandbox provider as a plugin. `name` is the value of a profile's `sandbox.provider`, and the substrate in the runner's info. */
export function defineSandboxProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  /** Errors in addition to those of every provider. */
  readonly errors?: ErrorTable
  /** Undefined: the provider is not configured, or this machine cannot run it. The runner then does not offer it. */
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

/** Reads a provider's deliveries in the conductor. A delivery can only invalidate what a runner has cached about a sandbox. */
export interface SandboxEventDecoder {
  /** Undefined when the delivery is not about a sandbox. AppError 400 when it cannot be read, 401 for a wrong signature. */
  decode(delivery: SandboxDelivery): { readonly sandboxId: string } | undefined
}
export const SandboxEventDecoders = slot<SandboxEventDecoder>('conductor.sandbox-event-decoders')
