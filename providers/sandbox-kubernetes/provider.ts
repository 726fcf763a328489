import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { invalidSandbox, type LaunchOrder, sandboxGone, type SandboxProvider } from '#contracts/sandbox'
import { isNotFound, isThere, type KubernetesApi, KubernetesError, type SandboxObject } from './api.ts'
import {
  isSuspended,
  labelsOf,
  ownerLabel,
  ownerSelector,
  sandboxManifest,
  secretManifest,
  stateOf,
  templateOf,
  type TemplateRules,
  type VolumeRules,
} from './objects.ts'

/** A pod has its grace to end, and its node may be slow to say so. */
const endMs = 60_000
const firstLookMs = 100
const longestLookMs = 1_000
/** Names of objects; anything else is no sandbox of ours. */
const nameForm = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

interface KubernetesProviderOptions {
  readonly api: KubernetesApi
  readonly rules: TemplateRules & VolumeRules
  readonly lifetimes: Lifetimes
  readonly log: FastifyBaseLogger
}

/** Sandboxes of kubernetes-sigs/agent-sandbox: a pod and a volume for each worker. */
export function createKubernetesProvider({ api, rules, lifetimes, log }: KubernetesProviderOptions): SandboxProvider {
  const goneOr = (error: unknown): unknown => (isNotFound(error) ? sandboxGone(error) : error)
  const find = async (sandboxId: string, signal?: AbortSignal): Promise<SandboxObject | undefined> => {
    if (!nameForm.test(sandboxId)) return undefined
    return api.get(sandboxId, signal).catch((error: unknown) => {
      if (isNotFound(error)) return undefined
      throw error
    })
  }
  const get = async (sandboxId: string): Promise<SandboxObject> => {
    const sandbox = await find(sandboxId)
    if (!sandbox || stateOf(sandbox) === 'gone') throw sandboxGone()
    return sandbox
  }

  /** What the profile asked for is its author's to mend; the rest is the operator's. */
  const refusal = (err: unknown): unknown => {
    if (!(err instanceof KubernetesError) || err.status !== 422) return err
    log.warn({ err }, 'Kubernetes takes no such sandbox')
    return invalidSandbox("Kubernetes takes no pod with this profile's `sandbox` settings.")
  }
  /** Creates the sandbox of an order, or takes the one that a lost answer was about. */
  const create = async (order: LaunchOrder, manifest: object): Promise<SandboxObject> => {
    try {
      return await api.create(manifest)
    } catch (error) {
      // Whatever it was about may be there, unless the server itself refused it.
      if (!(error instanceof KubernetesError)) await discard(order.name)
      if (!isThere(error)) throw refusal(error)
      const sandbox = await api.get(order.name)
      const owner = sandbox.metadata.labels?.[ownerLabel]
      if (owner !== labelsOf(order)[ownerLabel]) throw error
      return sandbox
    }
  }
  /** Gives the sandbox the environment of the order, and lets it run. */
  const run = async (sandbox: SandboxObject, order: LaunchOrder): Promise<void> => {
    const { name } = sandbox.metadata
    await api.applySecret(name, secretManifest({ ...order, name }, sandbox))
    await api.patch(name, { operatingMode: 'Running', shutdownTime: lifetimes.end() })
    lifetimes.add(name)
  }
  /** Looks until the pod of a sandbox has ended. */
  const ended = async (sandboxId: string, holds: (sandbox: SandboxObject | undefined) => boolean): Promise<void> => {
    const end = performance.now() + endMs
    for (let wait = firstLookMs; !holds(await find(sandboxId)); wait = Math.min(wait * 2, longestLookMs)) {
      if (performance.now() > end) throw new Error(`the pod of sandbox ${sandboxId} did not end`)
      await sleep(wait)
    }
  }
  const destroy = async (sandboxId: string): Promise<void> => {
    if (!nameForm.test(sandboxId)) return
    lifetimes.delete(sandboxId)
    await api.delete(sandboxId).catch((error: unknown) => {
      if (!isNotFound(error)) throw error
    })
    await ended(sandboxId, (sandbox) => sandbox === undefined)
  }

  const discard = (sandboxId: string): Promise<void> =>
    destroy(sandboxId).catch((err: unknown) => {
      log.warn({ err, sandboxId }, 'a sandbox that was not to be could not be deleted')
    })

  return {
    contract: 'sandbox/1',
    destroy,
    async launch(order, signal) {
      signal.throwIfAborted()
      const manifest = sandboxManifest(order, templateOf(order.template, rules), rules, lifetimes.end())
      // Not under the signal: what was begun must be known, or it could not be ended.
      const sandbox = await create(order, manifest)
      try {
        signal.throwIfAborted()
        await run(sandbox, order)
        signal.throwIfAborted()
      } catch (error) {
        await discard(order.name)
        throw error
      }
      return { sandboxId: order.name }
    },
    async status(sandboxId, signal) {
      const sandbox = await find(sandboxId, signal)
      return sandbox ? stateOf(sandbox) : 'gone'
    },
    async pause(sandboxId) {
      const sandbox = await get(sandboxId)
      try {
        if (sandbox.spec.operatingMode !== 'Suspended') await api.patch(sandboxId, { operatingMode: 'Suspended' })
      } catch (error) {
        throw goneOr(error)
      }
      await ended(sandboxId, (now) => {
        if (!now || stateOf(now) === 'gone') throw sandboxGone()
        return isSuspended(now)
      })
    },
    async resume(sandboxId, order) {
      const sandbox = await get(sandboxId)
      await run(sandbox, order).catch((error: unknown) => {
        throw goneOr(error)
      })
    },
    list: async (owner) =>
      (await api.list(ownerSelector(owner)))
        .filter((sandbox) => stateOf(sandbox) !== 'gone')
        .map((sandbox) => sandbox.metadata.name),
  }
}

/** Sandboxes of this process, which Kubernetes deletes by itself some time after nobody puts that off any more. */
interface Lifetimes {
  /** When a sandbox ends that is not renewed from now on. */
  end(): string
  add(sandboxId: string): void
  delete(sandboxId: string): void
  stop(): void
}

interface LifetimeOptions {
  readonly api: Pick<KubernetesApi, 'patch'>
  readonly lifetimeMs: number
  readonly log: FastifyBaseLogger
}

export function createLifetimes({ api, lifetimeMs, log }: LifetimeOptions): Lifetimes {
  const ours = new Set<string>()
  const renew = async (sandboxId: string): Promise<void> => {
    try {
      await api.patch(sandboxId, { shutdownTime: lifetimes.end() })
    } catch (err) {
      if (isNotFound(err)) ours.delete(sandboxId)
      else log.warn({ err, sandboxId }, 'the end of a sandbox could not be put off')
    }
  }
  // Two may fail before the time is over.
  const timer = setInterval(() => ours.forEach((id) => void renew(id)), lifetimeMs / 3).unref()
  const lifetimes: Lifetimes = {
    // Whole seconds, as Kubernetes writes times.
    end: () => new Date(Date.now() + lifetimeMs).toISOString().replace(/\.\d+Z$/, 'Z'),
    add: (sandboxId) => void ours.add(sandboxId),
    delete: (sandboxId) => void ours.delete(sandboxId),
    stop: () => clearInterval(timer),
  }
  return lifetimes
}
