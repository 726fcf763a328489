import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { parseAllDocuments } from 'yaml'
import { workerLabels } from '../objects.ts'
import { setUp } from './support.ts'

interface Example {
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string; readonly labels?: Record<string, string> }
  readonly rules?: readonly { readonly apiGroups: string[]; readonly resources: string[]; readonly verbs: string[] }[]
  readonly spec?: Readonly<Record<string, unknown>>
}

async function examples(file: string): Promise<Example[]> {
  const text = await readFile(new URL(`../../../examples/kubernetes/${file}`, import.meta.url), 'utf8')
  return parseAllDocuments(text).map((document) => {
    assert.deepEqual(document.errors, [])
    return document.toJS() as Example
  })
}
const find = (all: readonly Example[], kind: string, name?: string): Example =>
  all.find((one) => one.kind === kind && (name === undefined || one.metadata.name === name))!

/** How Kubernetes calls what a request does, for its access rules. */
const verbs: Readonly<Record<string, (path: string) => readonly string[]>> = {
  POST: () => ['create'],
  GET: (path) => [path.endsWith('/sandboxes') ? 'list' : 'get'],
  // What is applied may have to be created.
  PATCH: (path) => (path.includes('/secrets/') ? ['create', 'patch'] : ['patch']),
  DELETE: () => ['delete'],
}

test('the role of the examples allows what the provider does, and nothing else', async (t) => {
  const { fake, provider, orderOf, launch } = await setUp(t)
  const { order, sandboxId } = await launch()
  await provider.status(sandboxId)
  await provider.pause(sandboxId)
  await provider.resume(sandboxId, order)
  await provider.list!(orderOf().owner)
  await provider.destroy(sandboxId)
  const used: Record<string, Set<string>> = { sandboxes: new Set(), secrets: new Set() }
  for (const { method, url } of fake.requests) {
    const { pathname } = new URL(url, 'http://cluster')
    const resource = pathname.includes('/secrets/') ? 'secrets' : 'sandboxes'
    for (const verb of verbs[method]!(pathname)) used[resource]!.add(verb)
  }
  const { rules } = find(await examples('sandboxes.yaml'), 'Role')
  assert.deepEqual(
    rules!.map(({ apiGroups, resources, verbs }) => [apiGroups, resources, verbs.toSorted()]),
    [
      [['agents.x-k8s.io'], ['sandboxes'], [...used['sandboxes']!].toSorted()],
      [[''], ['secrets'], [...used['secrets']!].toSorted()],
    ],
  )
})

test('the network policy of the examples is about the pods of workers, and lets them reach the runners of the examples', async () => {
  const [sandboxes, runners] = [await examples('sandboxes.yaml'), await examples('runners.yaml')]
  const { spec } = find(sandboxes, 'NetworkPolicy')
  assert.deepEqual(spec!['podSelector'], { matchLabels: workerLabels })
  assert.deepEqual(spec!['policyTypes'], ['Ingress', 'Egress'])
  assert.equal(spec!['ingress'], undefined)
  const statefulSet = find(runners, 'StatefulSet')
  const { selector } = statefulSet.spec as { selector: object }
  assert.deepEqual(spec!['egress'], [
    {
      to: [
        {
          namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': statefulSet.metadata.namespace } },
          podSelector: selector,
        },
      ],
      ports: [{ port: 7061, protocol: 'TCP' }],
    },
  ])
  assert.deepEqual(find(runners, 'NetworkPolicy').spec!['podSelector'], selector)
})
