import type { Command } from 'commander'
import { createParser } from 'eventsource-parser'
import { devData } from './dev-data.ts'
import { CliError, type Terminal, terminalOf } from './terminal.ts'

interface ChatOptions {
  readonly url?: string
  readonly key?: string
  readonly tenant?: string
  readonly conversation?: string
  readonly data: string
}

export function addChat(program: Command): void {
  program
    .command('chat')
    .description('say something to a published agent and print its answer as it comes')
    .argument('<agent>', 'slug of the agent')
    .argument('<text>', 'the message')
    .option('--url <url>', 'gateway; default: the development server of --data')
    .option('--key <key>', "a key of the agent; default: the development server's")
    .option('--tenant <id>', 'tenant of the agent')
    .option('--conversation <id>', 'go on with this conversation')
    .option('--data <dir>', 'data directory of agent-orc dev', '.agent-orc')
    .option('--json', 'one JSON line per event')
    .action(async (agent: string, text: string, options: ChatOptions, command: Command) => {
      const { chatUrl, key } = await target(agent, options)
      const reply = await ask(`${chatUrl}/stream`, key, {
        message: text,
        ...(options.conversation === undefined ? {} : { conversation_id: options.conversation }),
      })
      await show(reply, terminalOf(command))
    })
}

async function target(agent: string, options: ChatOptions): Promise<{ chatUrl: string; key: string }> {
  const dev = await devData(options.data).lastReady()
  const known = dev?.agents.find((a) => a.slug === agent)
  const key = options.key ?? known?.key
  if (key === undefined) {
    const names = dev?.agents.map((a) => a.slug).join(', ')
    throw new CliError(
      names
        ? `no key of '${agent}' is known (only of ${names}); give --key`
        : `give --key, or start agent-orc dev first`,
      2,
    )
  }
  const gateway = options.url ?? dev?.gatewayUrl
  if (gateway === undefined) throw new CliError('give --url, or start agent-orc dev first', 2)
  if (!/^https?:$/.test(URL.parse(gateway)?.protocol ?? ''))
    throw new CliError(`--url ${gateway} is not the URL of a gateway; it looks like http://127.0.0.1:8090`, 2)
  const tenant = options.tenant ?? dev?.tenant ?? 'default'
  const path = [tenant, agent].map(encodeURIComponent).join('/')
  return { chatUrl: `${gateway.replace(/\/+$/, '')}/v1/chat/${path}`, key }
}

async function ask(url: string, key: string, body: object): Promise<Response> {
  const reply = await fetch(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify(body),
  }).catch((error: Error) => {
    const code = (error.cause as NodeJS.ErrnoException | undefined)?.code
    throw new CliError(`nothing answers at ${new URL(url).origin} (${code ?? error.message}); is it running?`)
  })
  if (reply.ok) return reply
  const problem = (await reply.json().catch(() => ({}))) as { error?: string; message?: string }
  throw new CliError(`the gateway answers ${reply.status} ${problem.message ?? problem.error ?? reply.statusText}`)
}

/** Fields of the stream events, specification 4.21.1. */
interface EventData {
  readonly text?: string
  readonly id?: string
  readonly name?: string
  readonly status?: string
  readonly message?: string
  readonly code?: string
  readonly conversation_id?: string
}

async function show(reply: Response, terminal: Terminal): Promise<void> {
  let ended = false
  let failure: string | undefined
  const people = (event: string, data: EventData): void => {
    if (event === 'delta') terminal.write(data.text ?? '')
    else if (event === 'tool' && data.name) terminal.progress(`  [${data.name}]`)
    else if (event === 'superseded') terminal.progress('\n\n  [begun again: the part before this does not count]\n')
    else if (event === 'done') terminal.progress(`\n\n  go on with --conversation ${data.conversation_id}`)
  }
  const parser = createParser({
    onEvent({ event = 'message', data }) {
      const fields = JSON.parse(data) as EventData
      if (terminal.json) terminal.print({ event, ...fields }, () => '')
      else people(event, fields)
      if (event === 'done' || event === 'error') ended = true
      if (event === 'error') failure = `${fields.code}: ${fields.message}`
    },
  })
  const decoder = new TextDecoder()
  for await (const chunk of reply.body ?? []) parser.feed(decoder.decode(chunk, { stream: true }))
  if (failure !== undefined) throw new CliError(failure)
  if (!ended) throw new CliError('the stream ended before the answer did')
}
