import { dataDirectory } from '../cluster.ts'
import type { Processes } from '../processes.ts'

/** The service in one process, with every provider that this machine has. */
export interface Dev {
  readonly pid: number
  readonly conductorUrl: string
  readonly runnerUrl: string
  readonly apiKey: string
  readonly tenant: string
  call<T>(method: string, path: string, body?: object): Promise<T>
}

/** One way to execute runs. Without a provider it is the static sidecar. */
export interface Cell {
  readonly runtime: string
  readonly provider?: Provider
  /** The name of its profile. */
  readonly name: string
}

/** Prepared workers of each profile with a sandbox; runs come one at a time. */
export const warmSize = 2
/** An idle worker is put to sleep after this, so that waking it can be measured. */
const idlePause = '2s'

const runtimes = { general: 'openai/stand-in', runtime_a: 'anthropic/stand-in', runtime_b: 'openai/stand-in' } as const
const providers = ['process', 'bubblewrap'] as const
export type Provider = (typeof providers)[number]
const cli = new URL('../../../cli/agent-orc.js', import.meta.url).pathname

const warmName = (cell: string): string => `${cell}-warm`
const everyCell: readonly Cell[] = Object.keys(runtimes).flatMap((runtime) => [
  { runtime, name: `${runtime}-static` },
  ...providers.map((provider) => ({ runtime, provider, name: `${runtime}-${provider}` })),
])

export async function startDev(processes: Processes, modelUrl: string): Promise<Dev> {
  const warm = everyCell.flatMap(({ provider, name }) => (provider ? [`default/${warmName(name)}=${warmSize}`] : []))
  const env = {
    LOG_LEVEL: 'error',
    OPENAI_BASE_URL: modelUrl,
    OPENAI_API_KEY: 'stand-in',
    ANTHROPIC_BASE_URL: modelUrl,
    ANTHROPIC_API_KEY: 'stand-in',
    AGENT_ORC_SANDBOX_PROCESS: 'true',
    AGENT_ORC_SANDBOX_IDLE_PAUSE: idlePause,
    AGENT_ORC_SANDBOX_WARM: warm.join(','),
  }
  const data = await dataDirectory(processes)
  const { child, line } = await processes.node([cli, 'dev', '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, runnerUrl, apiKey, tenant } = line as Record<string, string>
  return {
    pid: child.pid!,
    conductorUrl: conductorUrl!,
    runnerUrl: runnerUrl!,
    apiKey: apiKey!,
    tenant: tenant!,
    async call(method, path, body) {
      const response = await fetch(conductorUrl! + path, {
        method,
        headers: { authorization: `Bearer ${apiKey}`, ...(body ? { 'content-type': 'application/json' } : {}) },
        ...(body ? { body: JSON.stringify(body) } : {}),
      })
      const text = await response.text()
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
      return (text === '' ? undefined : JSON.parse(text)) as never
    },
  }
}

/** The cells that can be measured here, each with a profile, and the names of those that cannot. */
export async function cellsOf(dev: Dev): Promise<{ cells: Cell[]; absent: string[] }> {
  const info = (await (await fetch(`${dev.runnerUrl}/runner/info`)).json()) as {
    substrates: string[]
    capabilities: string[]
  }
  const absent = [
    ...Object.keys(runtimes).flatMap((name) => (info.capabilities.includes(name) ? [] : [`${name}: not installed`])),
    ...providers.flatMap((name) => (info.substrates.includes(name) ? [] : [`${name}: this machine has none`])),
    'e2b and kubernetes: their start is the substrate’s own',
  ]
  const cells = everyCell.filter(
    ({ runtime, provider }) =>
      info.capabilities.includes(runtime) && (provider === undefined || info.substrates.includes(provider)),
  )
  for (const { runtime, provider, name } of cells) {
    const profile = {
      runtime,
      model: runtimes[runtime as keyof typeof runtimes],
      ...(provider ? { workerMode: 'sandbox', sandbox: { provider } } : {}),
    }
    await dev.call('POST', '/api/profiles', { ...profile, name })
  }
  return { cells, absent }
}

/** The same profile with prepared workers; resolves once they are there. */
export async function warmUp(dev: Dev, cell: Cell): Promise<string> {
  const {
    id: _,
    version: __,
    createdAt: ___,
    updatedAt: ____,
    workerPlacement: _____,
    ...profile
  } = await dev.call<Record<string, unknown>>('GET', `/api/profiles/${cell.name}`)
  const name = warmName(cell.name)
  await dev.call('POST', '/api/profiles', { ...profile, name })
  return name
}

/** How many prepared workers wait, for all profiles. */
export async function waiting(dev: Dev): Promise<number> {
  const metrics = await (await fetch(`${dev.runnerUrl}/metrics`)).text()
  return Number(/^runner_sandboxes\{state="warm"\} (\d+)/m.exec(metrics)?.[1] ?? 0)
}

export async function until(check: () => Promise<boolean>, what: string): Promise<void> {
  const late = Date.now() + 120_000
  while (!(await check())) {
    if (Date.now() > late) throw new Error(`never: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
