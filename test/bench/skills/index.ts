// `npm run bench:skills`: what a thousand skills cost a tenant, in lists and in the start of runs. The same tenant without any
// of its own is what it is held to. See docs/performance.md.
import { startPostgres } from '#kit/postgres'
import { command, dataDirectory } from '../cluster.ts'
import { runCommand, say, withProcesses } from '../command.ts'
import type { Processes } from '../processes.ts'
import { environment } from '../service.ts'
import { median } from '../statistics.ts'

const many = 1_000
/** The tenant with a thousand skills may take so many times as long over what is not about all of them. */
const most = 1.5

const usage = 'npm run bench:skills -- [--samples 100]'
interface Options {
  readonly samples: number
}

function readOptions(args: string[]): Options {
  const samples = args[0] === undefined ? 100 : args[0] === '--samples' ? Number(args[1]) : Number.NaN
  if (!Number.isSafeInteger(samples) || samples < 1) throw new Error('--samples takes a whole number')
  return { samples }
}

/** Asks the conductor, and fails for anything but success. */
type Ask = (method: string, path: string, body?: object) => Promise<unknown>

async function startService(processes: Processes): Promise<Ask> {
  const postgres = await startPostgres({ dataDir: await dataDirectory(processes), settings: { fsync: 'off' } })
  processes.onStop(() => postgres.stop())
  const env = { ...environment('http://127.0.0.1:9'), POSTGRES_DSN: postgres.dsn() }
  const data = await dataDirectory(processes)
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, apiKey } = line as { conductorUrl: string; apiKey: string }
  return async (method, path, body) => {
    const response = await fetch(conductorUrl + path, {
      method,
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path} answers ${response.status}: ${text}`)
    return response.headers.get('content-type')?.includes('json;') ? (JSON.parse(text) as unknown) : undefined
  }
}

const skill = (n: number) => ({
  name: `skill-${n}`,
  description: `What skill ${n} is for, in about as many words as people take to say such a thing.`,
  body: 'Do it with care. '.repeat(100),
})

/** Milliseconds until a run of each kind is accepted in a session of its own, and until a list is read, in turns. */
async function measure(ask: Ask, samples: number): Promise<Record<string, number>> {
  const works: Readonly<Record<string, () => Promise<unknown>>> = {
    'start, no skills': () => ask('POST', '/api/runs', { profile: 'plain', prompt: 'x' }),
    'start, three skills': () => ask('POST', '/api/runs', { profile: 'skilled', prompt: 'x' }),
    'list, a page of 8': () => ask('GET', '/api/skills?limit=8'),
    'list, whole': () => ask('GET', '/api/skills'),
    'get one': () => ask('GET', '/api/skills/using-calculate'),
  }
  const taken: Record<string, number[]> = {}
  for (let n = -10; n < samples; n++) {
    for (const [name, work] of Object.entries(works)) {
      const began = performance.now()
      const answer = (await work()) as { readonly runId?: string }
      if (n >= 0) (taken[name] ??= []).push(performance.now() - began)
      // What was started is over before the next thing is measured.
      if (answer.runId !== undefined) await ask('GET', `/api/runs/${answer.runId}/stream`)
    }
  }
  return Object.fromEntries(Object.entries(taken).map(([name, all]) => [name, median(all)]))
}

async function bench({ samples }: Options, processes: Processes): Promise<boolean> {
  const ask = await startService(processes)
  const attached = ['using-calculate', 'using-current-time', 'using-search-docs']
  const tools = ['calculate', 'current_time', 'search_docs']
  await ask('POST', '/api/profiles', { name: 'plain', tools })
  await ask('POST', '/api/profiles', { name: 'skilled', tools, skills: attached })
  say('without skills of its own')
  const none = await measure(ask, samples)
  say(`creating ${many} skills`)
  for (let n = 0; n < many; n++) await ask('POST', '/api/skills', skill(n))
  say('with them')
  const full = await measure(ask, samples)
  const rows = Object.keys(none).map((name) => ({
    name,
    none: none[name]!,
    many: full[name]!,
    ratio: full[name]! / none[name]!,
  }))
  // Only the whole list grows with what is in it.
  const met = rows.every(({ name, ratio }) => name === 'list, whole' || ratio <= most)
  for (const row of rows)
    process.stdout.write(
      `${row.name.padEnd(22)} ${row.none.toFixed(1).padStart(7)} ms ${row.many.toFixed(1).padStart(7)} ms ${row.ratio.toFixed(2).padStart(6)}x\n`,
    )
  process.stdout.write(`${met ? 'met    ' : 'NOT MET'} with ${many} skills at most ${most}x, but for the whole list\n`)
  process.stdout.write(`${JSON.stringify({ samples, rows, met })}\n`)
  return met
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    if (!(await bench(options, processes))) process.exitCode = 1
  }),
)
