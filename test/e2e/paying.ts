import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import type { TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type Cluster, type Form, type Part, startCluster } from './cluster.ts'
import type { RoleName } from './roles.ts'

export interface Payment {
  readonly amount: number
  readonly runId: string
  readonly idempotencyKey: string
}

export interface Paying {
  readonly cluster: Cluster
  /** Every execution of the tool, in the order they arrived. A test that begins a new story empties it. */
  readonly payments: Payment[]
  /** Answers the payments that come from now on only once the returned function was called. */
  hold(): () => void
}

const root = fileURLToPath(new URL('../../', import.meta.url))
const toolRole = { single: 'dev', four: 'runner' } as const
const storeRole = { single: 'dev', four: 'conductor' } as const

/** A cluster with a tool whose executions are counted, and a conductor whose death is noticed in four seconds. */
export async function startPaying(
  t: TestContext,
  form: Form,
  apart: readonly Part[] = ['sidecar', 'runner', 'conductor'],
): Promise<Paying> {
  const payments: Payment[] = []
  let held: Promise<void> = Promise.resolve()
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) body += String(chunk)
    payments.push(JSON.parse(body) as Payment)
    await held
    response.end(`paid, receipt ${payments.length}`)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const folder = await mkdtemp(join(tmpdir(), 'ao-paying-'))
  t.after(() => rm(folder, { recursive: true }))
  const use = relative(folder, join(root, 'test/e2e/counting-tool.ts'))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const files: Partial<Record<RoleName, string>> = {}
  for (const role of new Set<RoleName>([toolRole[form], storeRole[form]])) {
    let text = await readFile(join(root, `config/${role}.yaml`), 'utf8')
    if (role === toolRole[form]) text += `\n  counting-tool:\n    use: ${use}\n    url: ${url}\n`
    text = text.replace(/^ {2}runs:\n/m, '$&    heartbeat: 500ms\n    lease: 4s\n    sweep: 300ms\n')
    files[role] = join(folder, `${role}.yaml`)
    await writeFile(files[role], text)
  }
  return {
    cluster: await startCluster(t, form, { files, apart }),
    payments,
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>()
      held = promise
      return resolve
    },
  }
}
