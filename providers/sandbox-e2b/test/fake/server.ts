import type { TestContext } from 'node:test'
import { type ApiRequest, type StandInApi, startStandInApi } from '#testing'
import { createAgent } from './agent.ts'
import type { FakeE2bOptions } from './options.ts'
import { createRestApi } from './rest.ts'
import { createSandboxes, type FakeSandbox } from './sandboxes.ts'

/** E2B as far as its API is used: its REST API and the agents of its sandboxes, which are processes of this machine. */
export interface FakeE2b extends StandInApi {
  readonly apiKey: string
  readonly sandboxes: ReadonlyMap<string, FakeSandbox>
  readonly named: (request: string) => readonly ApiRequest[]
  /** As its owner may do with E2B's own tools. */
  readonly end: (sandboxId: string) => Promise<void>
}

const anyTemplate = { cpuCount: 2, memoryMB: 512, diskSizeMB: 1_024 }

export async function startFakeE2b(
  t: Pick<TestContext, 'after'>,
  given: Partial<FakeE2bOptions> = {},
): Promise<FakeE2b> {
  const options: FakeE2bOptions = {
    apiKey: `e2b_${'0'.repeat(40)}`,
    templates: { base: anyTemplate, 'agent-orc-worker': anyTemplate },
    listLag: 0,
    routeLag: 1,
    ...given,
  }
  const sandboxes = createSandboxes()
  const rest = createRestApi(sandboxes, options)
  const agent = createAgent(sandboxes.all, options)
  // What E2B's proxies route by tells the two apart.
  const api = await startStandInApi(t, (request) =>
    request.headers['e2b-sandbox-id'] === undefined ? rest(request) : agent(request),
  )
  t.after(() => sandboxes.close())
  return {
    ...api,
    apiKey: options.apiKey,
    sandboxes: sandboxes.all,
    end: (sandboxId) => sandboxes.kill(sandboxes.all.get(sandboxId)!),
    named: (request) => api.requests.filter(({ method, url }) => `${method} ${url}` === request),
  }
}
