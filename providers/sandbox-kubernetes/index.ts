import { access, constants } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { CommaList, Duration, Settings } from '#kernel'
import {
  defineSandboxProvider,
  invalidSandbox,
  type LaunchOrder,
  sandboxGone,
  type SandboxProvider,
  type SandboxState,
} from '#contracts/sandbox'
import { ClusterAccess, isNotFound, isThere, KubernetesApi, KubernetesError, type SandboxObject } from './api.ts'
import {
  type AmountRules,
  isSuspended,
  labelsOf,
  ownerLabel,
  ownerSelector,
  PodTemplate,
  sandboxManifest,
  secretManifest,
  stateOf,
  templateOf,
  type TemplateRules,
  type VolumeRules,
} from './objects.ts'

/** The files of a pod's service account. */
const account = '/var/run/secrets/kubernetes.io/serviceaccount'

const Amount = (fallback: number, description: string) =>
  Type.Number({ exclusiveMinimum: 0, maximum: 4_194_304, default: fallback, description })

/** Runs workers in pods through kubernetes-sigs/agent-sandbox, for fleets larger than one machine. */
export default defineSandboxProvider({
  name: 'kubernetes',
  config: Settings({
    namespace: Type.Optional(
      Type.String({ description: 'The namespace of the sandboxes. Without it the provider is not offered.' }),
    ),
    apiUrl: Type.String({
      default: 'https://kubernetes.default.svc',
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Of the API server.',
    }),
    token: Type.Optional(Type.String({ description: 'Instead of a file.' })),
    tokenFile: Type.String({
      default: `${account}/token`,
      description: 'Read for every request, because the file is replaced from time to time.',
    }),
    caFile: Type.String({
      default: `${account}/ca.crt`,
      description: 'Authority of the API server; those of the system where there is no such file.',
    }),
    image: Type.Optional(Type.String({ description: 'For profiles that name no template.' })),
    images: Type.Optional(CommaList('Prefixes of the images that profiles may name as template; `*` for any.')),
    templates: Type.Optional(
      Type.Record(Type.String(), PodTemplate, { description: 'Pods that profiles may name as template.' }),
    ),
    workspaceSize: Type.String({ default: '1Gi', description: 'Size of the volume of a session.' }),
    memoryMb: Amount(1024, 'Memory of a pod for which neither its profile nor its template sets any.'),
    cpus: Amount(1, 'Processors, likewise.'),
    diskMb: Amount(256, 'Size of /tmp, likewise.'),
    mostMemoryMb: Amount(4096, 'The most that a profile may set.'),
    mostCpus: Amount(4, 'Likewise.'),
    mostDiskMb: Amount(1024, 'Likewise.'),
    lifetime: Duration('24h', 'A sandbox whose time no runner has extended for this long is deleted.'),
    storageClass: Type.Optional(
      Type.String({ description: 'Storage class of that volume; by default that of the cluster.' }),
    ),
  }),
  async create({ config, log, onStop }) {
    const { namespace, apiUrl, token, tokenFile, caFile, image, images, templates, lifetime } = config
    if (!namespace) return undefined
    if (!token && !(await isReadable(tokenFile))) {
      log.warn(
        `the sandbox provider 'kubernetes' is not offered: ${tokenFile} cannot be read. In a pod it exists by itself; elsewhere set AGENT_ORC_KUBERNETES_API and AGENT_ORC_KUBERNETES_TOKEN_FILE`,
      )
      return undefined
    }
    const cluster = new ClusterAccess({ token: token || undefined, tokenFile, caFile })
    onStop(() => cluster.dispatcher.destroy())
    const provider = new KubernetesProvider({
      api: new KubernetesApi(cluster, apiUrl, namespace),
      lifetimeMs: lifetime,
      rules: {
        image: image || undefined,
        images: images ?? [],
        templates: templates ?? {},
        workspaceSize: config.workspaceSize,
        storageClass: config.storageClass || undefined,
        amounts: {
          byDefault: { memoryMb: config.memoryMb, cpus: config.cpus, diskMb: config.diskMb },
          most: { memoryMb: config.mostMemoryMb, cpus: config.mostCpus, diskMb: config.mostDiskMb },
        },
      },
      log,
    })
    onStop(async () => provider.stop())
    return provider
  },
})

const isReadable = (file: string): Promise<boolean> =>
  access(file, constants.R_OK).then(
    () => true,
    () => false,
  )

/** Milliseconds for a pod to end: it has a grace period, and its node may report the end late. */
const endMs = 60_000
const firstLookMs = 100
const longestLookMs = 1_000
/** The form of our sandboxes' names. */
const nameForm = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

interface KubernetesProviderOptions {
  readonly api: KubernetesApi
  readonly rules: TemplateRules & VolumeRules & { readonly amounts: AmountRules }
  /** Kubernetes deletes a sandbox whose expiry was not extended for this many milliseconds. */
  readonly lifetimeMs: number
  readonly log: FastifyBaseLogger
}

/** Sandboxes of kubernetes-sigs/agent-sandbox: one pod and one volume per worker. */
class KubernetesProvider implements SandboxProvider {
  readonly contract = 'sandbox/1'
  readonly #options: KubernetesProviderOptions
  /** The sandboxes whose expiry this process extends. */
  readonly #used = new Set<string>()
  readonly #timer: NodeJS.Timeout

  constructor(options: KubernetesProviderOptions) {
    this.#options = options
    // Two extensions may fail before the expiry.
    this.#timer = setInterval(() => this.#used.forEach((id) => void this.#renew(id)), options.lifetimeMs / 3).unref()
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  async launch(order: LaunchOrder, signal: AbortSignal): Promise<{ sandboxId: string }> {
    signal.throwIfAborted()
    const { rules } = this.#options
    const manifest = sandboxManifest(order, templateOf(order.template, rules), rules, this.#end())
    // Called without the signal: an unknown started sandbox could never be ended.
    const sandbox = await this.#create(order, manifest)
    try {
      signal.throwIfAborted()
      await this.#run(sandbox, order)
      signal.throwIfAborted()
    } catch (error) {
      await this.#discard(order.name)
      throw error
    }
    return { sandboxId: order.name }
  }

  async status(sandboxId: string, signal?: AbortSignal): Promise<SandboxState> {
    const sandbox = await this.#find(sandboxId, signal)
    return sandbox ? stateOf(sandbox) : 'gone'
  }

  async pause(sandboxId: string): Promise<void> {
    const sandbox = await this.#get(sandboxId)
    try {
      if (sandbox.spec.operatingMode !== 'Suspended') {
        await this.#options.api.patch(sandboxId, { operatingMode: 'Suspended' })
      }
    } catch (error) {
      throw goneOr(error)
    }
    await this.#ended(sandboxId, (now) => {
      if (!now || stateOf(now) === 'gone') throw sandboxGone()
      return isSuspended(now)
    })
  }

  async resume(sandboxId: string, order: LaunchOrder): Promise<void> {
    const sandbox = await this.#get(sandboxId)
    await this.#run(sandbox, order).catch((error: unknown) => {
      throw goneOr(error)
    })
  }

  async destroy(sandboxId: string): Promise<void> {
    if (!nameForm.test(sandboxId)) return
    this.#used.delete(sandboxId)
    await this.#options.api.delete(sandboxId).catch((error: unknown) => {
      if (!isNotFound(error)) throw error
    })
    await this.#ended(sandboxId, (sandbox) => sandbox === undefined)
  }

  async list(owner: string): Promise<string[]> {
    const sandboxes = await this.#options.api.list(ownerSelector(owner))
    return sandboxes.filter((sandbox) => stateOf(sandbox) !== 'gone').map((sandbox) => sandbox.metadata.name)
  }

  /** Creates the sandbox of an order, or adopts the one that an earlier, unanswered request created. */
  async #create(order: LaunchOrder, manifest: object): Promise<SandboxObject> {
    const { api } = this.#options
    try {
      return await api.create(manifest)
    } catch (error) {
      // Unless the server itself refused the request, the sandbox may exist, so discard it.
      if (!(error instanceof KubernetesError)) await this.#discard(order.name)
      if (!isThere(error)) throw this.#refusal(error)
      const sandbox = await api.get(order.name)
      const owner = sandbox.metadata.labels?.[ownerLabel]
      if (owner !== labelsOf(order)[ownerLabel]) throw error
      return sandbox
    }
  }

  /** Gives the sandbox the environment of the order, and lets its pod start. */
  async #run(sandbox: SandboxObject, order: LaunchOrder): Promise<void> {
    const { api } = this.#options
    const { name } = sandbox.metadata
    await api.applySecret(name, secretManifest({ ...order, name }, sandbox))
    await api.patch(name, { operatingMode: 'Running', shutdownTime: this.#end() })
    this.#used.add(name)
  }

  /** When a sandbox expires unless it is extended, in whole seconds as Kubernetes writes times. */
  #end(): string {
    return new Date(Date.now() + this.#options.lifetimeMs).toISOString().replace(/\.\d+Z$/, 'Z')
  }

  async #renew(sandboxId: string): Promise<void> {
    try {
      await this.#options.api.patch(sandboxId, { shutdownTime: this.#end() })
    } catch (err) {
      if (isNotFound(err)) this.#used.delete(sandboxId)
      else this.#options.log.warn({ err, sandboxId }, 'the time of a sandbox could not be extended')
    }
  }

  async #discard(sandboxId: string): Promise<void> {
    await this.destroy(sandboxId).catch((err: unknown) => {
      this.#options.log.warn({ err, sandboxId }, 'a sandbox of an aborted launch could not be deleted')
    })
  }

  /** Waits until the pod of a sandbox has ended. */
  async #ended(sandboxId: string, holds: (sandbox: SandboxObject | undefined) => boolean): Promise<void> {
    const end = performance.now() + endMs
    for (let wait = firstLookMs; !holds(await this.#find(sandboxId)); wait = Math.min(wait * 2, longestLookMs)) {
      if (performance.now() > end) throw new Error(`the pod of sandbox ${sandboxId} did not end`)
      await sleep(wait)
    }
  }

  async #get(sandboxId: string): Promise<SandboxObject> {
    const sandbox = await this.#find(sandboxId)
    if (!sandbox || stateOf(sandbox) === 'gone') throw sandboxGone()
    return sandbox
  }

  async #find(sandboxId: string, signal?: AbortSignal): Promise<SandboxObject | undefined> {
    if (!nameForm.test(sandboxId)) return undefined
    return this.#options.api.get(sandboxId, signal).catch((error: unknown) => {
      if (isNotFound(error)) return undefined
      throw error
    })
  }

  /** Errors about the profile's settings go to the profile's author; all others go to the operator. */
  #refusal(err: unknown): unknown {
    if (!(err instanceof KubernetesError) || err.status !== 422) return err
    this.#options.log.warn({ err }, 'Kubernetes refuses the sandbox')
    return invalidSandbox("Kubernetes refuses a pod with this profile's `sandbox` settings.")
  }
}

const goneOr = (error: unknown): unknown => (isNotFound(error) ? sandboxGone(error) : error)
