import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LanguageModelV4, LanguageModelV4Prompt, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import fc from 'fast-check'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope } from '#testing'
import type { ModelProvider } from '#contracts/model'
import type { Attachment, ResponseFormat } from '#contracts/prompt'
import { type Replay, type RunTurn, type Turns, turnsContentType } from '#contracts/replay'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { generalWith, pixel } from './support.ts'

type Part = LanguageModelV4StreamPart

interface Step {
  readonly texts: readonly string[]
  /** Between the texts. */
  readonly thought: 'none' | 'unsigned' | 'signed'
  readonly calls: readonly { readonly name: string; readonly input: string }[]
}
/** How the run's last model call goes on behind its texts. */
type Ending =
  | 'answers'
  | 'reports an error'
  | 'breaks'
  | 'ends early'
  | 'hangs'
  | 'is tried again'
  | 'answers in form'
  | 'never fits'
interface Scripted {
  readonly prompt: string
  readonly attachments: readonly Attachment[]
  readonly steps: readonly Step[]
  readonly last: Step
  readonly ending: Ending
  readonly maxSteps: number | undefined
}

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}
const finish = (unified: 'stop' | 'tool-calls'): Part => ({ type: 'finish', usage, finishReason: { unified, raw: '' } })
const format: ResponseFormat = { type: 'json_schema', schema: { type: 'number' } }

function* partsOf({ texts, thought, calls }: Step): Generator<Part> {
  for (const [i, delta] of texts.entries()) {
    const providerMetadata = thought === 'signed' ? { vendor: { signature: 's' } } : undefined
    if (i > 0 && thought !== 'none') {
      yield { type: 'reasoning-start', id: `${i}` }
      yield { type: 'reasoning-delta', id: `${i}`, delta: 'hm', ...(providerMetadata ? { providerMetadata } : {}) }
      yield { type: 'reasoning-end', id: `${i}` }
    }
    yield { type: 'text-delta', id: 't', delta }
  }
  for (const { name, input } of calls) yield { type: 'tool-call', toolCallId: 'call', toolName: name, input }
}

/** What the model does in each of its calls, in order. */
function* answersOf({ steps, last, ending }: Scripted): Generator<() => Part[] | AsyncGenerator<Part>> {
  for (const step of steps) yield () => [...partsOf(step), finish('tool-calls')]
  const said = [...partsOf({ ...last, calls: [] })]
  const failing: Partial<Record<Ending, Part[]>> = {
    'reports an error': [...said, { type: 'error', error: 'overloaded' }],
    'is tried again': [...said, { type: 'error', error: 'overloaded' }],
    'ends early': said,
  }
  if (ending === 'hangs') yield () => hanging(said)
  else if (ending === 'breaks') yield () => breaking(said)
  else if (failing[ending]) yield () => failing[ending]!
  if (ending === 'answers' || ending === 'is tried again') yield () => [...said, finish('stop')]
  if (ending !== 'answers in form' && ending !== 'never fits') return
  yield () => [...said, finish('stop')]
  const again: Part = { type: 'text-delta', id: 't', delta: ending === 'never fits' ? 'still no' : '42' }
  yield () => [again, ending === 'never fits' ? { type: 'error', error: 'overloaded' } : finish('stop')]
}
async function* hanging(parts: readonly Part[]): AsyncGenerator<Part> {
  yield* parts
  yield { type: 'text-delta', id: 't', delta: '(the last word)' }
  await new Promise(() => {})
}
async function* breaking(parts: readonly Part[]): AsyncGenerator<Part> {
  yield* parts
  throw new Error('broken')
}

/** A model that does what it is told to, and keeps what it was last asked. */
function scriptedModel() {
  const queue: (() => Part[] | AsyncGenerator<Part>)[] = []
  const asked: LanguageModelV4Prompt[] = []
  const model: LanguageModelV4 = {
    specificationVersion: 'v4',
    provider: 'scripted',
    modelId: 'm',
    supportedUrls: {},
    doGenerate: () => Promise.reject(new Error('not used')),
    async doStream({ prompt }) {
      asked.push(structuredClone(prompt))
      const parts = (
        queue.shift() ?? (() => [{ type: 'text-delta', id: 't', delta: 'fine' }, finish('stop')] as Part[])
      )()
      return { stream: ReadableStream.from(parts) as ReadableStream<Part> }
    },
  }
  const provider: ModelProvider = { contract: 'model/1', model: () => model }
  return { provider, queue, asked }
}

/** The runs of the conversation as a conductor has them stored: the log of each, and what it was asked. */
async function converse(
  runtime: Runtime,
  queue: (() => Part[] | AsyncGenerator<Part>)[],
  run: RunEnvelope,
  turn: Scripted,
) {
  queue.splice(0, queue.length, ...answersOf(turn))
  const abort = new AbortController()
  const events = await collectRun(bareSidecar(runtime), run, abort.signal, (event) => {
    if (event.type === 'assistant' && event.text.endsWith('(the last word)')) abort.abort()
  })
  if (turn.ending !== 'is tried again' || events.at(-1)?.type !== 'error') return events
  // The conductor tries it again, with what was finished.
  const first = events.slice(0, -1)
  const again = { ...run, attempt: 2, replay: replayOf(first, false) }
  const retrying: Partial<RunEvent> = { type: 'progress', stage: 'retrying' }
  return [...first, retrying as RunEvent, ...(await collectRun(bareSidecar(runtime), again))]
}

/** `whole`: with the text behind the last result. */
function replayOf(events: readonly RunEvent[], whole: boolean): Replay {
  const replay: Replay = []
  let text = ''
  const keep = (): void => {
    if (text !== '') replay.push({ type: 'assistant', text, delta: true })
    text = ''
  }
  for (const event of events) {
    if (event.type === 'assistant') text += event.text
    if (event.type === 'progress' && (event.stage === 'retrying' || event.stage === 'output_invalid')) text = ''
    if (event.type !== 'tool_call' && event.type !== 'tool_result') continue
    keep()
    const { runId: _, sessionId: __, seq: ___, at: ____, ...item } = event
    replay.push(item)
  }
  if (whole) keep()
  return replay
}

const turnOf = (run: RunEnvelope, events: readonly RunEvent[]): RunTurn => ({
  runId: run.runId,
  prompt: run.prompt,
  model: run.profile.model,
  ...(run.attachments ? { attachments: run.attachments } : {}),
  replay: replayOf(events, true),
  ...(events.at(-1)?.type === 'result' ? {} : { error: true }),
})
const hydrate = (runtime: Runtime, sessionId: string, turns: Turns | object): Promise<void> =>
  runtime.hydrate!(sessionId, { bytes: Buffer.from(JSON.stringify(turns)), contentType: turnsContentType })

/** Signatures are with nobody but the process that saw them. */
const unsigned = (prompt: LanguageModelV4Prompt | undefined) =>
  prompt?.map((message) => {
    if (message.role !== 'assistant' || !message.content.some(({ type }) => type === 'reasoning')) return message
    const content: { type: string; text?: string }[] = []
    for (const part of message.content.filter(({ type }) => type !== 'reasoning')) {
      const last = content.at(-1)
      if (part.type === 'text' && last?.type === 'text')
        content[content.length - 1] = { ...part, text: last.text + part.text }
      else content.push(part)
    }
    return { ...message, content }
  })

const text = fc.constantFrom('', 'one ', 'two', '\n\nthree', 'a "quoted" \\ one', '\u{1f600}')
const step = (calls: fc.Arbitrary<Step['calls']>): fc.Arbitrary<Step> =>
  fc.record({
    texts: fc.array(text, { maxLength: 3 }),
    thought: fc.constantFrom('none', 'none', 'unsigned', 'signed'),
    calls,
  })
const call = fc.record({
  name: fc.constantFrom('look', 'fail', 'nowhere'),
  input: fc.constantFrom('{}', '', '{"at":"a","deep":[1,{"b":null}]}', 'no json', '[1]'),
})
const attachment: fc.Arbitrary<Attachment> = fc.constantFrom(
  { mediaType: 'image/png', data: pixel, name: 'dot.png' },
  { mediaType: 'application/pdf', data: 'JVBERg==' },
  { mediaType: 'text/csv', data: Buffer.from('a,b').toString('base64'), name: 'table.csv' },
)
const turn: fc.Arbitrary<Scripted> = fc.record({
  prompt: fc.constantFrom('hello', 'and?', 'look at it'),
  attachments: fc.array(attachment, { maxLength: 2 }),
  steps: fc.array(step(fc.array(call, { minLength: 1, maxLength: 3 })), { maxLength: 2 }),
  last: step(fc.constant([])),
  ending: fc.constantFrom<Ending>(
    'answers',
    'answers',
    'reports an error',
    'breaks',
    'ends early',
    'hangs',
    'is tried again',
    'answers in form',
    'never fits',
  ),
  maxSteps: fc.option(fc.constantFrom(1, 2), { nil: undefined, freq: 6 }),
})

test('a conversation that is restored from its stored runs goes on exactly as the one that was lost', async (t) => {
  const tools = await startToolServer(t, {
    look: async (input) => ({ text: `saw ${JSON.stringify(input)}` }),
    fail: async () => ({ text: 'It broke.', isError: true }),
  })
  const { provider, queue, asked } = scriptedModel()
  const live = await generalWith(t, { scripted: provider })
  const fresh = await generalWith(t, { scripted: provider })
  const conversation = fc.array(turn, { minLength: 1, maxLength: 4 })
  await fc.assert(
    fc.asyncProperty(conversation, async (turns) => {
      const { sessionId } = testEnvelope()
      const envelope = (prompt: string, fields: Partial<RunEnvelope> = {}, limits = {}): RunEnvelope =>
        testEnvelope({
          sessionId,
          prompt,
          ...fields,
          profile: { model: 'scripted/m', tools: ['look', 'fail'], limits },
        })
      const stored: RunTurn[] = []
      for (const one of turns) {
        const fields = {
          ...(one.attachments.length > 0 ? { attachments: [...one.attachments] } : {}),
          ...(one.steps.length > 0 ? { sessionMcpUrl: tools.url } : {}),
          ...(one.ending === 'answers in form' || one.ending === 'never fits' ? { responseFormat: format } : {}),
        }
        const run = envelope(one.prompt, fields, one.maxSteps === undefined ? {} : { maxSteps: one.maxSteps })
        stored.push(turnOf(run, await converse(live, queue, run, one)))
      }
      queue.length = 0
      await hydrate(fresh, sessionId, { turns: stored })
      assert.equal(fresh.has!(sessionId), true)
      const next = async (runtime: Runtime) => {
        assert.equal(terminalOf(await collectRun(bareSidecar(runtime), envelope('next'))).type, 'result')
        return asked.at(-1)
      }
      const before = await next(live)
      const after = await next(fresh)
      assert.notEqual(after, before)
      assert.deepEqual(after, unsigned(before))
    }),
    { numRuns: 150 },
  )
})

test('what is restored is the whole conversation: a run that is tried again takes back its own turn, and no runs are no turns', async (t) => {
  const { provider, asked } = scriptedModel()
  const runtime = await generalWith(t, { scripted: provider })
  const run = testEnvelope({ profile: { model: 'scripted/m' }, prompt: 'again' })
  const replay: Replay = [{ type: 'assistant', text: 'half of', delta: true }]
  await hydrate(runtime, run.sessionId, {
    turns: [
      { runId: 'one', prompt: 'first', replay: [{ type: 'assistant', text: 'fine', delta: true }] },
      { runId: 'two', prompt: 'said nothing', replay: [], error: true, somethingNew: 1 },
      { runId: run.runId, prompt: 'again', replay, error: true },
    ],
  })
  await collectRun(bareSidecar(runtime), { ...run, attempt: 2, replay: [] })
  assert.deepEqual(
    asked
      .at(-1)!
      .map(({ role, content }) => `${role}: ${typeof content === 'string' ? content : JSON.stringify(content)}`),
    [
      'user: [{"type":"text","text":"first"}]',
      'assistant: [{"type":"text","text":"fine"}]',
      'user: [{"type":"text","text":"again"}]',
    ],
  )
  await hydrate(runtime, 'sess-00000000-0000000e', { turns: [] })
  assert.equal(runtime.has!('sess-00000000-0000000e'), true)
})

test('stored runs that are none are refused with 400 invalid_state, and change nothing', async (t) => {
  const { provider } = scriptedModel()
  const runtime = await generalWith(t, { scripted: provider })
  const sessionId = 'sess-00000000-0000000e'
  const good = { runId: 'one', prompt: 'first', replay: [] }
  const bad = [
    {},
    { turns: {} },
    { turns: [{ ...good, prompt: 7 }] },
    { turns: [{ ...good, replay: [{ type: 'usage' }] }] },
    { turns: [{ ...good, replay: [{ type: 'tool_result', id: 'a', name: 'x', ok: 'yes', content: '' }] }] },
    { turns: [{ ...good, attachments: [{ mediaType: 'image/png', data: 'http://169.254.169.254/', url: 1 }] }] },
    { runtime: 'general', version: 1, turns: [[{ role: 'user', content: [{ type: 'text', text: 'hi' }] }]] },
  ]
  for (const value of bad) {
    await assert.rejects(
      hydrate(runtime, sessionId, value),
      { code: 'invalid_state', status: 400 },
      JSON.stringify(value),
    )
  }
  const bytes = Buffer.from(JSON.stringify({ turns: [good] }))
  await assert.rejects(runtime.hydrate!(sessionId, { bytes, contentType: 'application/json' }), {
    code: 'invalid_state',
  })
  assert.equal(runtime.has!(sessionId), false)
  await runtime.hydrate!(sessionId, { bytes, contentType: `${turnsContentType.toUpperCase()}; charset=utf-8` })
  assert.equal(runtime.has!(sessionId), true)
})
