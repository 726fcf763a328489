// In the place of the program, for what the real one cannot be made to do: `node fake-codex.ts <how>`.
import { createInterface } from 'node:readline'

const how = process.argv[2]
const write = (message: unknown): void => void process.stdout.write(`${JSON.stringify(message)}\n`)
const report = (method: string, params: object): void => write({ method, params: { turnId: 'turn', ...params } })
const item = (type: string): object => ({
  item: { type, id: 'i', text: '', server: 'runner', tool: 'look', arguments: {} },
})

const misbehaviours: Readonly<Record<string, () => void>> = {
  garbage: () => void process.stdout.write('thread panicked\n'),
  flood: () => void process.stdout.write('x'.repeat(32 * 1024 * 1024)),
  exit: () => process.exit(3),
  early: () => report('turn/completed', { turn: { id: 'turn', status: 'interrupted', error: null } }),
  hostTool: () => report('item/started', item('commandExecution')),
  warns() {
    report('warning', { message: 'something is odd' })
    report('item/completed', item('error'))
    report('error', { error: { message: 'again', codexErrorInfo: 'other' }, willRetry: true })
    report('item/agentMessage/delta', { delta: 'fine' })
    report('turn/completed', { turn: { id: 'turn', status: 'completed', error: null } })
  },
  asks() {
    write({ id: 'q', method: 'item/commandExecution/requestApproval', params: {} })
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, error } = JSON.parse(line) as { id?: unknown; method?: string; error?: unknown }
  if (method === 'initialize' && how === 'mute') continue
  if (id === 'q') {
    report('item/agentMessage/delta', { delta: error ? 'refused' : 'approved' })
    report('turn/completed', { turn: { id: 'turn', status: 'completed', error: null } })
  } else if (id !== undefined) write({ id, result: { thread: { id: 'thread' }, turn: { id: 'turn' } } })
  if (method === 'turn/start') misbehaviours[how!]?.()
}
// One that does not end by itself.
if (how === 'stubborn' || how === 'mute') setInterval(() => {}, 60_000)
