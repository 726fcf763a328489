import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ApiRequest } from '#testing'
import { image, setUp } from './support.ts'

const shape = ({ method, url, headers, body }: ApiRequest) => ({
  request: `${method} ${url}`,
  ...(headers['content-type'] === undefined ? {} : { type: headers['content-type'] }),
  ...(body.length === 0 ? {} : { body: JSON.parse(body.toString('utf8')) as unknown }),
})
const time = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/g
const timesOf = (requests: unknown): string[] => JSON.stringify(requests).match(time) ?? []
const base64 = (text: string): string => Buffer.from(text).toString('base64')

test('requests are as Kubernetes and agent-sandbox document them, and a pod may do nothing it need not', async (t) => {
  const templates = {
    large: { image, pod: { nodeSelector: { pool: 'agents' } }, container: { imagePullPolicy: 'Always' } },
  }
  const { fake, provider, launch } = await setUp(t, { templates, storageClass: 'fast', workspaceSize: '5Gi' })
  const { sandboxId } = await launch({
    name: 'ao-0123456789abcdef',
    owner: '0f1e2d3c',
    tenantId: 'acme',
    sessionId: 'sess-0f1e2d3c-00000001',
    template: 'large',
    resources: { memoryMb: 512, cpus: 0.5, diskMb: 256 },
    runnerUrl: 'http://runner.agent-orc.svc:7061',
    env: { AGENT_ORC_WORKER_TOKEN: 'token-1' },
  })
  assert.equal(sandboxId, 'ao-0123456789abcdef')
  await provider.list!('0f1e2d3c')
  const { uid } = fake.sandboxes.get(sandboxId)!
  assert.ok(fake.requests.every(({ headers }) => headers.authorization === `Bearer ${fake.token}`))

  const objects = '/apis/agents.x-k8s.io/v1beta1/namespaces/agents/sandboxes'
  const worker = { 'app.kubernetes.io/part-of': 'agent-orc', 'app.kubernetes.io/component': 'sandbox-worker' }
  const labels = {
    ...worker,
    'agent-orc/owner': '0f1e2d3c',
    'agent-orc/tenant': 'acme',
    'agent-orc/session': 'sess-0f1e2d3c-00000001',
  }
  const amounts = { memory: '512Mi', cpu: '0.5', 'ephemeral-storage': '256Mi' }
  const container = {
    name: 'worker',
    image,
    imagePullPolicy: 'Always',
    envFrom: [{ secretRef: { name: sandboxId } }],
    workingDir: '/workspace',
    resources: { requests: amounts, limits: amounts },
    securityContext: {
      allowPrivilegeEscalation: false,
      privileged: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    },
    volumeMounts: [
      { name: 'workspace', mountPath: '/workspace', subPath: 'files' },
      { name: 'workspace', mountPath: '/state', subPath: 'state' },
      { name: 'tmp', mountPath: '/tmp' },
    ],
  }
  const requests = fake.requests.map(shape)
  const [times, timeless] = [
    timesOf(requests),
    JSON.parse(JSON.stringify(requests).replaceAll(time, 'later')) as unknown,
  ]
  for (const text of times) assert.ok(Math.abs(Date.parse(text) - Date.now() - 24 * 3_600_000) < 60_000, text)
  assert.deepEqual(timeless, [
    {
      request: `POST ${objects}?fieldManager=agent-orc`,
      type: 'application/json',
      body: {
        apiVersion: 'agents.x-k8s.io/v1beta1',
        kind: 'Sandbox',
        metadata: {
          name: sandboxId,
          labels,
          annotations: { 'agent-orc/tenant': 'acme', 'agent-orc/session': 'sess-0f1e2d3c-00000001' },
        },
        spec: {
          operatingMode: 'Suspended',
          shutdownTime: 'later',
          shutdownPolicy: 'Delete',
          podTemplate: {
            metadata: { labels },
            spec: {
              restartPolicy: 'OnFailure',
              terminationGracePeriodSeconds: 10,
              nodeSelector: { pool: 'agents' },
              automountServiceAccountToken: false,
              enableServiceLinks: false,
              securityContext: {
                fsGroup: 1000,
                runAsUser: 1000,
                runAsGroup: 1000,
                runAsNonRoot: true,
                seccompProfile: { type: 'RuntimeDefault' },
              },
              containers: [container],
              volumes: [{ name: 'tmp', emptyDir: { sizeLimit: '256Mi' } }],
            },
          },
          volumeClaimTemplates: [
            {
              metadata: { name: 'workspace', labels: worker },
              spec: {
                accessModes: ['ReadWriteOnce'],
                resources: { requests: { storage: '5Gi' } },
                storageClassName: 'fast',
              },
            },
          ],
        },
      },
    },
    {
      request: `PATCH /api/v1/namespaces/agents/secrets/${sandboxId}?fieldManager=agent-orc&force=true`,
      type: 'application/apply-patch+yaml',
      body: {
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: {
          name: sandboxId,
          labels: worker,
          ownerReferences: [{ apiVersion: 'agents.x-k8s.io/v1beta1', kind: 'Sandbox', name: sandboxId, uid }],
        },
        type: 'Opaque',
        data: {
          AGENT_ORC_WORKSPACE: base64('/workspace'),
          AGENT_ORC_STATE_DIR: base64('/state'),
          HOME: base64('/workspace'),
          AGENT_ORC_WORKER_TOKEN: base64('token-1'),
          AGENT_ORC_SESSION_ID: base64('sess-0f1e2d3c-00000001'),
          AGENT_ORC_RUNNER_URL: base64('http://runner.agent-orc.svc:7061'),
        },
      },
    },
    {
      request: `PATCH ${objects}/${sandboxId}?fieldManager=agent-orc`,
      type: 'application/merge-patch+json',
      body: { spec: { operatingMode: 'Running', shutdownTime: 'later' } },
    },
    {
      request: `GET ${objects}?${new URLSearchParams({
        labelSelector:
          'app.kubernetes.io/part-of=agent-orc,app.kubernetes.io/component=sandbox-worker,agent-orc/owner=0f1e2d3c',
        limit: '250',
      }).toString()}`,
    },
  ])
})

test('a template adds volumes, and cannot take away what keeps a pod in its bounds', async (t) => {
  const templates = {
    bold: {
      image,
      pod: {
        automountServiceAccountToken: true,
        securityContext: { runAsNonRoot: false, runAsUser: 2_000 },
        volumes: [{ name: 'models', emptyDir: {} }],
      },
      container: {
        securityContext: { privileged: true },
        volumeMounts: [{ name: 'models', mountPath: '/models' }],
      },
    },
  }
  const { fake, launch } = await setUp(t, { templates })
  const { sandboxId } = await launch({ template: 'bold' })
  const { spec } = fake.sandboxes.get(sandboxId)!.manifest.spec.podTemplate
  assert.equal(spec.automountServiceAccountToken, false)
  assert.equal(spec.securityContext!.runAsNonRoot, true)
  assert.equal(spec.securityContext!.runAsUser, 2_000)
  assert.equal(spec.containers[0]!.securityContext.privileged, false)
  assert.deepEqual(
    spec.containers[0]!.volumeMounts.map(({ mountPath }) => mountPath),
    ['/models', '/workspace', '/state', '/tmp'],
  )
  assert.equal(spec.volumes!.length, 2)
})
