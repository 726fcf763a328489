import { invalidSandbox, type LaunchOrder, type SandboxResources } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { apiVersion, type SandboxObject } from './api.ts'
import { labelsOf, workerLabels } from './labels.ts'
import type { PodTemplate } from './templates.ts'

/** Where the volume of a session is: the agent's files, and beside them what its worker keeps. It stays while the pod is away. */
const workspace = '/workspace'
const stateDir = '/state'
/** A worker that is told to end uploads its conversation, which takes a moment. */
const graceSeconds = 10
/** What the images of this repository run as; a volume belongs to its group. */
const uid = 1000

export interface VolumeRules {
  /** Size of a workspace, as Kubernetes writes it. */
  readonly workspaceSize: string
  /** The cluster's default unless given. */
  readonly storageClass: string | undefined
}

/**
 * The Sandbox of an order. It begins suspended: its secret is to belong to it, so it has to be there first, and its pod is
 * not to start without the secret.
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
      // As they are; a label may hold their digest only.
      annotations: { 'agent-orc/tenant': order.tenantId, 'agent-orc/session': order.sessionId },
    },
    spec: {
      operatingMode: 'Suspended',
      // A sandbox that everybody forgot ends by itself.
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
    // A worker that fails is started again beside its files; one that ends was told to.
    restartPolicy: 'OnFailure',
    terminationGracePeriodSeconds: graceSeconds,
    ...pod,
    // What a template cannot take away.
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
        // What a template cannot take away.
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

/** A pod gets what it may use: what is promised twice ends somebody else's worker. */
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

/** The worker's environment, its token among it. It ends with the sandbox, and a pod reads it each time it starts. */
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
