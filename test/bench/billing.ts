// `npm run bench:billing`: chats a second of one tenant, 64 at a time, with billing and without it. See docs/performance.md.
import { publishAgent } from './agents.ts'
import { command, dataDirectory } from './cluster.ts'
import { runCommand, say, withProcesses } from './command.ts'

import type { Processes } from './processes.ts'
import { environment } from './service.ts'
import { quantile } from './statistics.ts'
import { draw, shown } from './table.ts'
import { startModel } from './targets.ts'

/** All runs of a tenant wait for its account: what that may cost it. */
const aim = 0.7
const atOnce = 64
const rounds = 6
const chatsOfRound = 600

/** Resolves to how many chats a second the service answers, of so many. */
type Round = (chats: number) => Promise<number>

async function start(processes: Processes, modelUrl: string, more: Readonly<Record<string, string>>): Promise<Round> {
  const data = await dataDirectory(processes)
  const env = { ...environment(modelUrl), ...more }
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, gatewayUrl, apiKey } = line as Record<'conductorUrl' | 'gatewayUrl' | 'apiKey', string>
  const { path, keys } = await publishAgent(conductorUrl, apiKey, 'burst-20')
  return async (chats) => {
    let left = chats
    const chat = async (i: number): Promise<void> => {
      const headers = { authorization: `Bearer ${keys[i % keys.length]}`, 'content-type': 'application/json' }
      const answer = await fetch(`${gatewayUrl}${path}/stream`, {
        method: 'POST',
        headers,
        body: '{"message":"hello"}',
      })
      const text = await answer.text()
      if (!answer.ok || !text.includes('event: done'))
        throw new Error(`a chat is answered ${answer.status}: ${text.slice(0, 500)}`)
    }
    const began = performance.now()
    await Promise.all(
      Array.from({ length: atOnce }, async (_, i) => {
        while (left-- > 0) await chat(i)
      }),
    )
    return chats / ((performance.now() - began) / 1_000)
  }
}

async function bench(processes: Processes): Promise<boolean> {
  const { url } = await startModel(processes, 0)
  const services = {
    'without billing': await start(processes, url, {}),
    'with billing': await start(processes, url, { AGENT_ORC_BILLING: 'ledger' }),
  }
  const names = ['without billing', 'with billing'] as const
  const rates: Record<string, number[]> = {}
  for (const name of names) await services[name](chatsOfRound)
  for (let round = 0; round < rounds; round++) {
    say(`round ${round + 1} of ${rounds}`)
    for (const name of round % 2 ? names : names.toReversed())
      (rates[name] ??= []).push(await services[name](chatsOfRound))
  }
  const [free, billed] = names.map((name) => quantile(rates[name]!, 0.5))
  const ratio = billed! / free!
  const rows = names.map((name) => [name, shown(quantile(rates[name]!, 0.5), 0)])
  process.stdout.write(`${draw([['one tenant, 64 chats at a time', 'chats a second'], ...rows])}\n`)
  process.stdout.write(`${ratio >= aim ? 'met    ' : 'NOT MET'} at least ${aim}x: ${shown(ratio, 2)}x\n`)
  return ratio >= aim
}

await runCommand(
  'npm run bench:billing',
  (args) => args,
  () =>
    withProcesses(async (processes) => {
      if (!(await bench(processes))) process.exitCode = 1
    }),
)
