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
  volume: VolumeRules,
  shutdownTime: string,
): object {
  const labels = labelsOf(order)
  const { workspaceSize, storageClass } = volume
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
      podTemplate: { metadata: { labels }, spec: podSpec(order, template) },
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

function podSpec(order: LaunchOrder, { image, pod, container }: PodTemplate): object {
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
        resources: resourcesOf(order.resources),
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
    volumes: [...listOf(pod?.['volumes']), { name: 'tmp', emptyDir: sizeLimit(order.resources) }],
  }
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as unknown[]) : [])

const sizeLimit = ({ diskMb }: SandboxResources): object => (diskMb === undefined ? {} : { sizeLimit: `${diskMb}Mi` })

/** A pod requests as much as its limits, because overcommitted memory would end another tenant's worker. */
function resourcesOf({ memoryMb, cpus, diskMb, pids }: SandboxResources): object {
  if (pids !== undefined) {
    throw invalidSandbox('Kubernetes limits the processes of a pod by its nodes: leave `resources.pids` out.')
  }
  const amounts = {
    ...(memoryMb === undefined ? {} : { memory: `${memoryMb}Mi` }),
    ...(cpus === undefined ? {} : { cpu: String(cpus) }),
    ...(diskMb === undefined ? {} : { 'ephemeral-storage': `${diskMb}Mi` }),
  }
  return { requests: amounts, limits: amounts }
}

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
