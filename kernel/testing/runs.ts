import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { Value } from '@sinclair/typebox/value'
import { type Entry, linesOf, type Plugin } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { RunEnvelope } from '#contracts/run-envelope'
import { isTerminalType, parseLine, type RunEvent, RuntimeEvent } from '#contracts/run-event'
import { type Runtime, Runtimes } from '#contracts/runtime'
import type { SidecarLink } from '#contracts/sidecar'
import { entriesOf } from './kernel.ts'

/** A complete profile, overridden by `fields`. */
export const testProfile = (name: string, fields: Partial<Profile> = {}): Profile => ({
  name,
  id: `prof_${name}`,
  runtime: 'general',
  model: 'builtin/demo',
  instructions: '',
  tools: [],
  skills: [],
  mcpServers: [],
  workerMode: 'static',
  limits: {},
  metadata: {},
  createdAt: '2026-01-01T00:00:00.000Z',
  updatedAt: '2026-01-01T00:00:00.000Z',
  ...fields,
})

export type EnvelopeFields = Partial<Omit<RunEnvelope, 'profile'>> & { readonly profile?: Partial<Profile> }

/** A valid run envelope with fresh ids, overridden by `fields`. */
export function testEnvelope(fields: EnvelopeFields = {}): RunEnvelope {
  return {
    runId: `run_${randomBytes(8).toString('hex')}`,
    sessionId: `sess-00000000-${randomBytes(4).toString('hex')}`,
    tenantId: 'default',
    prompt: 'hello',
    firstSeq: 1,
    timeoutMs: 30_000,
    ...fields,
    // A session with an endpoint gets a tool: a runtime does not connect for an empty toolkit.
    profile: testProfile('test', {
      id: 'test',
      ...(fields.sessionMcpUrl === undefined ? {} : { tools: ['tool'] }),
      ...fields.profile,
    }),
  }
}

/** Every event of a run. Fails when one is not a stamped event of the contract, or the stamps have a gap. */
export async function collectRun(
  link: Pick<SidecarLink, 'run'>,
  envelope: RunEnvelope,
  signal: AbortSignal = new AbortController().signal,
  onEvent: (event: RunEvent) => void = () => {},
): Promise<RunEvent[]> {
  const events: RunEvent[] = []
  for await (const chunk of link.run(envelope, signal)) {
    assert.equal(chunk.at(-1), 0x0a, 'a chunk holds whole lines')
    for (const line of linesOf(chunk)) {
      const event = parseLine(line)
      assert.ok(event && Value.Check(RuntimeEvent, event), `not an event of the contract: ${line.toString('utf8')}`)
      const stamped = event as RunEvent
      assert.equal(stamped.runId, envelope.runId, "an event's runId is that of the envelope")
      assert.equal(stamped.sessionId, envelope.sessionId, "an event's sessionId is that of the envelope")
      assert.equal(stamped.seq, envelope.firstSeq + events.length, 'stamps count up without a gap')
      events.push(stamped)
      onEvent(stamped)
    }
  }
  return events
}

/** The last event of a run. Fails unless it is the only `result` or `error`. */
export function terminalOf(events: readonly RunEvent[]): Extract<RunEvent, { type: 'result' | 'error' }> {
  const terminals = events.filter((event) => isTerminalType(event.type))
  assert.equal(terminals.length, 1, 'a run has exactly one result or error')
  assert.equal(events.at(-1), terminals[0], 'nothing follows the result or error')
  return terminals[0] as Extract<RunEvent, { type: 'result' | 'error' }>
}

/** The text of a run: its deltas joined. */
export const textOf = (events: readonly RunEvent[]): string =>
  events.map((event) => (event.type === 'assistant' ? event.text : '')).join('')

/** Boots `plugins` in a test kernel and returns its runtime `name`. */
export async function runtimeOf(
  t: Pick<TestContext, 'after'>,
  name: string,
  plugins: readonly (Plugin | Entry)[],
): Promise<Runtime> {
  const found = (await entriesOf(t, Runtimes, plugins)).get(name)
  assert.ok(found, `no plugin adds a runtime '${name}'`)
  return found
}
