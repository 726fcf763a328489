import { type Command, Option } from 'commander'
import { signerWith } from './signed-requests.ts'
import { CliError, columns, terminalOf } from './terminal.ts'

interface Options {
  readonly conductor?: string
  readonly key?: string
}

interface Runner {
  readonly url: string
  readonly hash: string
  readonly state: string
  readonly unroutableSessions?: number | null
}

const keyVariable = 'CHAT_GATEWAY_SIGNING_KEY_CURRENT'

export function addRunners(program: Command): void {
  const runners = program.command('runners').description('the runners of one conductor, over its signed listener')
  const command = (usage: string, description: string): Command =>
    runners
      .command(usage)
      .description(description)
      .addOption(new Option('--conductor <url>', 'internal listener of the conductor').env('CONDUCTOR_INTERNAL_URL'))
      .addOption(new Option('--key <base64>', 'signing key of that listener').env(keyVariable))
      .option('--json', 'answer as JSON')
  command('add [urls...]', 'add runners and ask all of them; without URLs, those of RUNNER_URLS').action(
    async (urls: string[], options: Options, self: Command) => {
      const body = urls.length === 0 ? undefined : { urls }
      const answer = await ask<{ runners: Runner[] }>(options, 'reconcile', body)
      terminalOf(self).print(answer, () => table(answer.runners))
    },
  )
  for (const [what, description] of [
    ['drain', 'give a runner no new sessions; those it has go on'],
    ['undrain', 'give a drained runner sessions again'],
    ['remove', 'forget a runner; drain it first and wait until it has no sessions'],
  ] as const) {
    command(`${what} <hash>`, description).action(async (hash: string, options: Options, self: Command) => {
      const runner = await ask<Runner>(options, what, { hash })
      terminalOf(self).print(runner, () => table([runner]))
    })
  }
}

const table = (runners: readonly Runner[]): string =>
  columns(
    runners.map(({ hash, state, url, unroutableSessions }) => [
      hash,
      state,
      url === '' ? 'in the conductor' : url,
      unroutableSessions === undefined ? '' : `${unroutableSessions ?? 'unknown number of'} sessions left there`,
    ]),
  )

async function ask<T>({ conductor, key }: Options, what: string, body: object | undefined): Promise<T> {
  if (conductor === undefined) throw new CliError('give --conductor, or set CONDUCTOR_INTERNAL_URL', 2)
  if (key === undefined) throw new CliError(`give --key, or set ${keyVariable}`, 2)
  if (!URL.canParse(conductor)) throw new CliError(`--conductor ${conductor} is not a URL`, 2)
  const url = new URL(`${conductor.replace(/\/+$/, '')}/internal/topology/${what}`)
  const text = body === undefined ? '' : JSON.stringify(body)
  // The call is not about a tenant, but a signature has to name one.
  const parts = { tenant: 'default', method: 'POST', target: url.pathname, body: Buffer.from(text) }
  const reply = await fetch(url, {
    method: 'POST',
    headers: {
      ...signerWith('chat-gateway', key, keyVariable)(parts),
      ...(body ? { 'content-type': 'application/json' } : {}),
    },
    ...(body ? { body: text } : {}),
  }).catch((error: Error) => {
    const code = (error.cause as NodeJS.ErrnoException | undefined)?.code
    throw new CliError(`nothing answers at ${url.origin} (${code ?? error.message}); is it the internal listener?`)
  })
  const answer = (await reply.json().catch(() => ({}))) as { error?: string; message?: string }
  if (reply.ok) return answer as T
  const hint = reply.status === 401 ? `; is ${keyVariable} the conductor's?` : ''
  throw new CliError(
    `the conductor answers ${reply.status} ${answer.message ?? answer.error ?? reply.statusText}${hint}`,
  )
}
