import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import pino from 'pino'
import { bareSidecar, collectRun, terminalOf, testEnvelope } from '#testing'
import type { RunEvent } from '#contracts/run-event'
import { runtimeA } from '../index.ts'
import type { Message, Query, Vendor } from '../sdk.ts'
import { model } from './support.ts'

const answer: Message = { type: 'result', subtype: 'success', is_error: false, stop_reason: 'end_turn', result: 'fine' }

/** A vendor whose answers are there when they are let go, by prompt. */
function slowVendor() {
  const answers = new Map<
    unknown,
    { readonly asked: PromiseWithResolvers<void>; readonly go: PromiseWithResolvers<void> }
  >()
  const of = (prompt: unknown) => {
    const found = answers.get(prompt) ?? { asked: Promise.withResolvers<void>(), go: Promise.withResolvers<void>() }
    answers.set(prompt, found)
    return found
  }
  const query = ({
    prompt,
  }: {
    readonly prompt: AsyncIterable<{ message: { content: readonly unknown[] } }>
  }): Query => {
    const stopped = Promise.withResolvers<void>()
    const messages = async function* (): AsyncGenerator<Message> {
      const { value } = await prompt[Symbol.asyncIterator]().next()
      const { text } = value.message.content.at(-1) as { text: string }
      of(text).asked.resolve()
      await Promise.race([of(text).go.promise, stopped.promise])
      yield answer
    }
    return Object.assign(messages(), { interrupt: async () => stopped.resolve() })
  }
  const vendor: Vendor = { missing: undefined, load: async () => ({ query }) }
  return {
    vendor,
    asked: (prompt: string) => of(prompt).asked.promise,
    letGo: (prompt: string) => of(prompt).go.resolve(),
  }
}

async function stage(t: TestContext, maxProcesses: number) {
  const { vendor, asked, letGo } = slowVendor()
  const config = { apiKey: 'secret', maxProcesses }
  const onStop = (fn: () => Promise<void>): void => t.after(fn)
  const runtime = await runtimeA({ config, egress: undefined, log: pino({ level: 'silent' }), onStop }, vendor)
  const begin = (
    tenantId: string,
    prompt: string,
    signal?: AbortSignal,
    more: { readonly awaited?: true } = {},
  ): Promise<RunEvent[]> => {
    const events = collectRun(bareSidecar(runtime), testEnvelope({ ...model, tenantId, prompt, ...more }), signal)
    events.catch(() => {})
    return events
  }
  return { begin, asked, letGo }
}

test('runs of a tenant that take all of its slots leave some to others', async (t) => {
  const { begin, asked, letGo } = await stage(t, 4)
  const beginMany = (from: number, to: number) =>
    Array.from({ length: to - from }, (_, i) => begin('a', `a${from + i}`))
  const runs = beginMany(0, 2)
  // Those that came together would take the slots in any order.
  await Promise.all([asked('a0'), asked('a1')])
  runs.push(...beginMany(2, 6))
  letGo('b0')
  assert.equal(terminalOf(await begin('b', 'b0')).type, 'result')
  for (let i = 0; i < 6; i++) letGo(`a${i}`)
  for (const events of await Promise.all(runs)) assert.equal(terminalOf(events).type, 'result')
})

test('a run that waits for a slot gets the next one, and ends when it is stopped', async (t) => {
  const { begin, asked, letGo } = await stage(t, 1)
  const first = begin('a', 'first')
  await asked('first')
  const stop = new AbortController()
  const stopped = begin('b', 'stopped', stop.signal)
  const last = begin('b', 'last')
  stop.abort()
  assert.deepEqual(await stopped, [])
  letGo('first')
  letGo('last')
  for (const run of [first, last]) assert.equal(terminalOf(await run).type, 'result')
})

test('a delegated run takes the slot that its parent leaves free, or ends at once', { timeout: 30_000 }, async (t) => {
  const { begin, asked, letGo } = await stage(t, 2)
  const parent = begin('a', 'parent')
  await asked('parent')
  const child = begin('a', 'child', undefined, { awaited: true })
  await asked('child')
  const refused = terminalOf(await begin('a', 'another child', undefined, { awaited: true }))
  assert.deepEqual([refused.type, 'code' in refused && refused.code], ['error', 'runtime_busy'])
  for (const prompt of ['child', 'parent']) letGo(prompt)
  for (const run of [child, parent]) assert.equal(terminalOf(await run).type, 'result')
})
