import { createHash } from 'node:crypto'
import { type Static, Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { invalidSandbox, type LaunchOrder, type SandboxResources, type SandboxState } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { apiVersion, type SandboxObject } from './api.ts'

/** Labels by which a NetworkPolicy selects worker pods. */
export const workerLabels = {
  'app.kubernetes.io/part-of': 'agent-orc',
  'app.kubernetes.io/component': 'sandbox-worker',
}

export const ownerLabel = 'agent-orc/owner'
const tenantLabel = 'agent-orc/tenant'
const sessionLabel = 'agent-orc/session'

const labelForm = /^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$/
const digestForm = /^sha256-/

/** A valid label value that differs for different texts: the text itself, or its digest if the text does not fit. */
const labelValue = (text: string): string =>
  labelForm.test(text) && !digestForm.test(text)
    ? text
    : `sha256-${createHash('sha256').update(text).digest('hex').slice(0, 40)}`

export const ownerSelector = (owner: string) => ({ ...workerLabels, [ownerLabel]: labelValue(owner) })

export const labelsOf = ({ owner, tenantId, sessionId }: LaunchOrder): Record<string, string> => ({
  ...ownerSelector(owner),
  [tenantLabel]: labelValue(tenantId),
  [sessionLabel]: labelValue(sessionId),
})

/** A pod template, which profiles select by `sandbox.template`. */
export const PodTemplate = Settings({
  image: Type.String({ minLength: 1 }),
  pod: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), {
      description: 'More of the pod: runtimeClassName, nodeSelector, tolerations, imagePullSecrets …',
    }),
  ),
  container: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), { description: 'More of its container: command, imagePullPolicy …' }),
  ),
})
export type PodTemplate = Static<typeof PodTemplate>

export interface TemplateRules {
  /** The image for profiles that name none. */
  readonly image: string | undefined
  readonly templates: Readonly<Record<string, PodTemplate>>
  /** Prefixes of the images that profiles may name; `*` allows any image. */
  readonly images: readonly string[]
}

const imageForm = /^[a-z0-9][A-Za-z0-9._:/@-]{0,254}$/

/** The pod of an order. Profiles may choose only images that the operator allows. */
export function templateOf(name: string | undefined, { image, templates, images }: TemplateRules): PodTemplate {
  if (name === undefined) {
    if (image !== undefined) return { image }
    throw invalidSandbox('Set `sandbox.template` of the profile; this runner has no default image.')
  }
  const named = Object.hasOwn(templates, name) ? templates[name] : undefined
  if (named) return named
  if (imageForm.test(name) && images.some((start) => start === '*' || name.startsWith(start))) return { image: name }
  throw invalidSandbox(`'${name}' is neither a pod template of this runner nor an image that profiles may choose.`)
}

/** The mount point of the session's volume, with the agent's files and the worker's own data. The volume exists even while there is no pod. */
const workspace = '/workspace'
const stateDir = '/state'
/** Seconds that a stopping worker gets, because it first uploads its conversation. */
const graceSeconds = 10
/** The user of this repository's images. A volume belongs to the group with the same id. */
const uid = 1000

/** Amounts of a pod. */
export interface PodAmounts {
  readonly memoryMb: number
  readonly cpus: number
  /** The size of `/tmp` in MB. The workspace is a volume of its own. */
  readonly diskMb: number
}

/** The amounts of a pod for which neither its profile nor its template sets any, and the most that a profile may set. */
export interface AmountRules {
  readonly byDefault: PodAmounts
  readonly most: PodAmounts
}

export interface VolumeRules {
  /** Size of a workspace, as Kubernetes writes it. */
  readonly workspaceSize: string
  /** Undefined: the cluster's default. */
  readonly storageClass: string | undefined
}

/**
 * The Sandbox object of an order. It begins suspended: its secret belongs to it and must be created after it, and its pod must not start without
 * the secret.
 */
export function sandboxManifest(
  order: LaunchOrder,
  template: PodTemplate,
  { workspaceSize, storageClass, amounts }: VolumeRules & { readonly amounts: AmountRules },
  shutdownTime: string,
): object {
  const labels = labelsOf(order)
  return {
    apiVersion,
    kind: 'Sandbox',
    metadata: {
      name: order.name,
      labels,
      // The ids themselves, because a label may only hold their digest.
      annotations: { 'agent-orc/tenant': order.tenantId, 'agent-orc/session': order.sessionId },
    },
    spec: {
      operatingMode: 'Suspended',
      // A sandbox that is forgotten ends by itself.
      shutdownTime,
      shutdownPolicy: 'Delete',
      podTemplate: { metadata: { labels }, spec: podSpec(order, template, amounts) },
      volumeClaimTemplates: [
        {
          metadata: { name: 'workspace', labels: workerLabels },
          spec: {
            accessModes: ['ReadWriteOnce'],
            resources: { requests: { storage: workspaceSize } },
            ...(storageClass === undefined ? {} : { storageClassName: storageClass }),
          },
        },
      ],
    },
  }
}

function podSpec(order: LaunchOrder, { image, pod, container }: PodTemplate, amounts: AmountRules): object {
  const tmp = { name: 'tmp', emptyDir: { sizeLimit: `${order.resources.diskMb ?? amounts.byDefault.diskMb}Mi` } }
  return {
    // A worker that fails is restarted with its files. A worker that ends normally was told to end.
    restartPolicy: 'OnFailure',
    terminationGracePeriodSeconds: graceSeconds,
    ...pod,
    // Settings that a template cannot override.
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    securityContext: {
      fsGroup: uid,
      runAsUser: uid,
      runAsGroup: uid,
      ...(pod?.['securityContext'] as object | undefined),
      runAsNonRoot: true,
      seccompProfile: { type: 'RuntimeDefault' },
    },
    containers: [
      {
        ...container,
        // Settings that a template cannot override.
        name: 'worker',
        image,
        envFrom: [{ secretRef: { name: order.name } }],
        workingDir: workspace,
        resources: resourcesOf(order.resources, container?.['resources'], amounts),
        securityContext: {
          allowPrivilegeEscalation: false,
          privileged: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
        },
        volumeMounts: [
          ...listOf(container?.['volumeMounts']),
          { name: 'workspace', mountPath: workspace, subPath: 'files' },
          { name: 'workspace', mountPath: stateDir, subPath: 'state' },
          { name: 'tmp', mountPath: '/tmp' },
        ],
      },
    ],
    volumes: [...listOf(pod?.['volumes']), tmp],
  }
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as unknown[]) : [])

/** CPU that a pod requests whose profile sets none. More pods than processors only make workers slower. */
const usualCpuRequest = '100m'

/**
 * The resources of a pod: those of the profile, otherwise those of its template, otherwise the provider's. There is always a limit, because a pod
 * without one is only stopped when it has exhausted its node. It requests as much memory and disk as its limits: overcommitted memory would end
 * another tenant's worker.
 */
function resourcesOf(wanted: SandboxResources, ofTemplate: unknown, { byDefault, most }: AmountRules): object {
  if (wanted.pids !== undefined) {
    throw invalidSandbox('Kubernetes limits the processes of a pod by its nodes: leave `resources.pids` out.')
  }
  for (const name of ['memoryMb', 'cpus', 'diskMb'] as const) {
    const allowed = Math.max(most[name], byDefault[name])
    if ((wanted[name] ?? 0) <= allowed) continue
    throw invalidSandbox(
      `This runner gives a sandbox at most ${allowed} ${name}, and the profile sets ${wanted[name]}.`,
    )
  }
  const usual = written(byDefault)
  const own = written(wanted)
  const { requests, limits } = {
    ...(ofTemplate as { readonly requests?: object; readonly limits?: object } | undefined),
  }
  return {
    requests: { ...usual, cpu: usualCpuRequest, ...limits, ...requests, ...own },
    limits: { ...raised(usual, requests), ...limits, ...own },
  }
}

/** The usual limits. Kubernetes refuses a pod that requests more than its limit, so what a template requests counts where it is more. */
function raised(usual: object, requests: object = {}): object {
  const wanted = new Map<string, unknown>(Object.entries(requests))
  return Object.fromEntries(
    Object.entries(usual).map(([name, limit]: [string, unknown]) => {
      const request = wanted.get(name)
      return [name, request === undefined || amountOf(request) <= amountOf(limit) ? limit : request]
    }),
  )
}

const prefixes = 'num kMGTPE'

/** A quantity of Kubernetes as a number; NaN for one that it will refuse. */
function amountOf(quantity: unknown): number {
  const [, number, prefix, binary] = /^(\d*\.?\d*(?:[eE]\d+)?)([numkKMGTPE]?)(i?)$/.exec(String(quantity)) ?? []
  const power = prefixes.indexOf(prefix?.replace('K', 'k') || ' ') - prefixes.indexOf(' ')
  return Number(number) * (binary ? 1024 : 1000) ** power
}

/** Amounts as Kubernetes names and writes them. */
const written = ({ memoryMb, cpus, diskMb }: SandboxResources): object => ({
  ...(memoryMb === undefined ? {} : { memory: `${memoryMb}Mi` }),
  ...(cpus === undefined ? {} : { cpu: String(cpus) }),
  ...(diskMb === undefined ? {} : { 'ephemeral-storage': `${diskMb}Mi` }),
})

/** The worker's environment, including its token. It is deleted with the sandbox, and a pod reads it at each start. */
export function secretManifest({ name, env, runnerUrl }: LaunchOrder, { metadata }: SandboxObject): object {
  const variables = {
    [workerVariables.workspace]: workspace,
    [workerVariables.stateDir]: stateDir,
    HOME: workspace,
    ...env,
    [workerVariables.runnerUrl]: runnerUrl,
  }
  return {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: {
      name,
      labels: workerLabels,
      ownerReferences: [{ apiVersion, kind: 'Sandbox', name, uid: metadata.uid }],
    },
    type: 'Opaque',
    data: Object.fromEntries(
      Object.entries(variables).map(([key, value]) => [key, Buffer.from(value).toString('base64')]),
    ),
  }
}

/** A condition of the object's current generation. Conditions about an earlier generation are ignored. */
function condition({ metadata, status }: SandboxObject, type: string): boolean | undefined {
  const found = status?.conditions?.find((one) => one.type === type)
  if (!found) return undefined
  const { observedGeneration, status: value } = found
  if (observedGeneration !== undefined && metadata.generation !== undefined) {
    if (observedGeneration < metadata.generation) return undefined
  }
  return value === 'True'
}

export function stateOf(sandbox: SandboxObject): SandboxState {
  if (sandbox.metadata.deletionTimestamp !== undefined) return 'gone'
  if (sandbox.spec.operatingMode === 'Suspended') return 'paused'
  // The worker ended by itself, and its pod is not started again.
  if (condition(sandbox, 'Finished')) return 'gone'
  return condition(sandbox, 'Ready') ? 'running' : 'starting'
}

/** True when the sandbox is suspended and its pod is really gone. */
export const isSuspended = (sandbox: SandboxObject): boolean =>
  sandbox.spec.operatingMode === 'Suspended' && condition(sandbox, 'Suspended') === true
