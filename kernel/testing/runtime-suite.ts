import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { isAppError } from '#kernel'
import type { Replay } from '#contracts/replay'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RunEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import type { SidecarLink } from '#contracts/sidecar'
import { collectRun, type EnvelopeFields, terminalOf, testEnvelope, textOf } from './runs.ts'
import { bareSidecar, sidecarAt, type SignRequest, stamping } from './sidecar-link.ts'

/** Prompts that make the runtime under test do what the suite tests. What a script leaves out is not tested. */
export interface RuntimeScript {
  /** A prompt whose answer contains `word`. */
  say(word: string): string
  /** A prompt whose answer takes until it is stopped, after at least one text delta. */
  readonly hang?: string
  /** A prompt that makes the runtime call a tool. */
  readonly tool?: string
  /** The runtime declares `replays`: a repeated attempt of `tool` continues after the finished part. */
  readonly replays?: boolean
  /** A prompt that asks to remember `word`, and a prompt whose answer then contains it. Tests the state and the separation of sessions. */
  readonly memory?: { tell(word: string): string; readonly ask: string }
  /** The headers that authenticate the caller, for a base URL that requires them. */
  readonly sign?: SignRequest
  /** Fields that override those of every envelope, e.g. the profile's model or the address of a tool server. */
  readonly envelope?: EnvelopeFields
}

/** An adapter, a link to a sidecar, or the base URL of a running one. */
export type RuntimeSubject = Runtime | Link | string

/** A link whose `run` has the parameters of a runtime's, so that either can be written without naming their types. */
interface Link extends Omit<SidecarLink, 'run'> {
  run(...of: Parameters<Runtime['run']>): AsyncIterable<Buffer>
}

/** Milliseconds. A runtime that takes longer has failed. */
const timeout = 20_000

/**
 * The contract of a runtime as tests. `make` is called for each test: with a new adapter or process each time the suite
 * also shows that state moves between hosts. A base URL tests a sidecar written in any language.
 */
export function testRuntime(name: string, make: MakeRuntime, script: RuntimeScript): void {
  const suite = new RuntimeSuite(name, make, script)
  const { hang, memory, tool, replays } = script
  testRuns(suite)
  if (hang !== undefined) testAbort(suite, hang)
  if (tool !== undefined) testToolCalls(suite, tool)
  if (tool !== undefined && replays) testReplay(suite, tool)
  if (memory) testState(suite, memory)
  testWire(suite)
}

type MakeRuntime = (t: TestContext) => Promise<RuntimeSubject> | RuntimeSubject

/** What the groups of tests have in common: the runtime under test and its script. */
class RuntimeSuite {
  readonly name: string
  readonly make: MakeRuntime
  readonly script: RuntimeScript

  constructor(name: string, make: MakeRuntime, script: RuntimeScript) {
    this.name = name
    this.make = make
    this.script = script
  }

  /** Declares a test. */
  check(sentence: string, body: (t: TestContext) => Promise<void>): void {
    void test(`${this.name}: ${sentence}`, { timeout }, body)
  }
  async open(t: TestContext): Promise<SidecarLink> {
    const subject = await this.make(t)
    if (typeof subject === 'string') return stamping(this.at(subject))
    return 'contract' in subject ? bareSidecar(subject) : subject
  }
  at(baseUrl: string): SidecarLink {
    return sidecarAt(baseUrl, this.script.sign)
  }
  envelope(prompt: string, fields: EnvelopeFields = {}): RunEnvelope {
    const { envelope } = this.script
    return testEnvelope({
      ...envelope,
      ...fields,
      prompt,
      profile: { runtime: this.name, ...envelope?.profile, ...fields.profile },
    })
  }
}

/** The text of a run that must end well. */
async function ask(link: SidecarLink, run: RunEnvelope): Promise<string> {
  const terminal = terminalOf(await collectRun(link, run))
  assert.equal(terminal.type, 'result', `the run failed: ${JSON.stringify(terminal)}`)
  return terminal.type === 'result' ? terminal.text : ''
}

function testRuns(suite: RuntimeSuite): void {
  suite.check('a run ends with exactly one result, and its text deltas join to it', async (t) => {
    const events = await collectRun(await suite.open(t), suite.envelope(suite.script.say('marmalade')))
    const terminal = terminalOf(events)
    assert.ok(terminal.type === 'result', `the run failed: ${JSON.stringify(terminal)}`)
    assert.match(terminal.text, /marmalade/)
    assert.equal(textOf(events), terminal.text)
  })

  suite.check('stamps go on from firstSeq, and unknown fields of the envelope are ignored', async (t) => {
    const run = { ...suite.envelope(suite.script.say('marmalade')), firstSeq: 42, somethingNew: { a: 1 } }
    assert.equal((await collectRun(await suite.open(t), run))[0]?.seq, 42)
  })

  suite.check('runs of different sessions at once do not mix', async (t) => {
    const link = await suite.open(t)
    const words = ['anise', 'basil', 'clove', 'dill', 'endive', 'fennel']
    const texts = await Promise.all(words.map((word) => ask(link, suite.envelope(suite.script.say(word)))))
    for (const [i, text] of texts.entries()) {
      assert.deepEqual(
        words.filter((word) => text.includes(word)),
        [words[i]],
      )
    }
  })

  suite.check('a session runs again after a run', async (t) => {
    const link = await suite.open(t)
    const { sessionId } = suite.envelope('')
    await ask(link, suite.envelope(suite.script.say('first'), { sessionId }))
    assert.match(await ask(link, suite.envelope(suite.script.say('second'), { sessionId })), /second/)
  })

  suite.check('a session that never ran has no state', async (t) => {
    assert.equal(await (await suite.open(t)).exportState(suite.name, 'sess-00000000-00000000'), undefined)
  })
}

function testAbort(suite: RuntimeSuite, hang: string): void {
  suite.check('a run stops when its signal aborts, and the runtime stays usable', async (t) => {
    const link = await suite.open(t)
    const abort = new AbortController()
    const run = suite.envelope(hang)
    // A client that aborts may see its stream cut; a host then writes the last event.
    const events = await collectRun(link, run, abort.signal, () => abort.abort()).catch((error: unknown) => {
      assert.ok(abort.signal.aborted, `the run failed before it was stopped: ${String(error)}`)
      return [] as RunEvent[]
    })
    assert.equal(
      events.some((event) => event.type === 'result'),
      false,
      'a stopped run has no result',
    )
    assert.match(await ask(link, suite.envelope(suite.script.say('after'))), /after/)
  })
}

function testToolCalls(suite: RuntimeSuite, tool: string): void {
  suite.check('every tool call is answered by one tool result of the same id and name, after it', async (t) => {
    const events = await collectRun(await suite.open(t), suite.envelope(tool))
    assert.equal(terminalOf(events).type, 'result')
    const open_ = new Map<string, string>()
    let calls = 0
    for (const event of events) {
      if (event.type === 'tool_call') {
        assert.equal(open_.has(event.id), false, 'an id is open once')
        open_.set(event.id, event.name)
        calls++
      } else if (event.type === 'tool_result') {
        assert.equal(open_.get(event.id), event.name, 'a result answers an open call')
        open_.delete(event.id)
      }
    }
    assert.ok(calls > 0, 'the prompt makes the runtime call a tool')
    assert.equal(open_.size, 0, 'no call is left without a result')
  })
}

function testReplay(suite: RuntimeSuite, tool: string): void {
  suite.check('a repeated attempt with replay does not repeat finished calls', async (t) => {
    const first = suite.envelope(tool)
    const events = await collectRun(await suite.open(t), first)
    const replay = finishedPart(events)
    // Repeat on another host, which knows only the replay.
    const again = { ...first, attempt: 2, replay, firstSeq: events.length + 1 }
    const link = await suite.open(t)
    const rest = await collectRun(link, again)
    const terminal = terminalOf(rest)
    assert.ok(terminal.type === 'result', `the attempt failed: ${JSON.stringify(terminal)}`)
    const called = rest.filter((event) => event.type === 'tool_call' || event.type === 'tool_result')
    assert.deepEqual(called, [], 'a finished call is not repeated')
    assert.equal(
      terminal.text,
      textOf(replay as RunEvent[]) + textOf(rest),
      'the answer is what both attempts have said',
    )
    const unfinished = replay.slice(
      0,
      replay.findLastIndex((event) => event.type === 'tool_result'),
    )
    const third = await collectRun(link, { ...again, attempt: 3, replay: unfinished })
    const open_ = replay.at(-1) as Extract<RunEvent, { type: 'tool_result' }>
    const answered = third.flatMap((event) => (event.type === 'tool_result' ? [event.id] : []))
    assert.deepEqual(answered, [open_.id], 'a call without a result is executed, under the id it has')
  })
}

function testState(suite: RuntimeSuite, memory: NonNullable<RuntimeScript['memory']>): void {
  suite.check('a session remembers, and another one does not know', async (t) => {
    const link = await suite.open(t)
    const { sessionId } = suite.envelope('')
    await ask(link, suite.envelope(memory.tell('Marmalade'), { sessionId }))
    assert.match(await ask(link, suite.envelope(memory.ask, { sessionId })), /Marmalade/)
    assert.doesNotMatch(await ask(link, suite.envelope(memory.ask)), /Marmalade/)
  })

  suite.check('the state of a session moves to another host', async (t) => {
    const here = await suite.open(t)
    const { sessionId } = suite.envelope('')
    await ask(here, suite.envelope(memory.tell('Marmalade'), { sessionId }))
    const bundle = await here.exportState(suite.name, sessionId)
    assert.ok(bundle, 'a session that was used has a state')
    const there = await suite.open(t)
    await there.hydrate(suite.name, sessionId, bundle)
    assert.match(await ask(there, suite.envelope(memory.ask, { sessionId })), /Marmalade/)
  })

  suite.check('a corrupt bundle is refused with 400 and changes nothing', async (t) => {
    const link = await suite.open(t)
    const { sessionId } = suite.envelope('')
    const bundles = [Buffer.from('{"not":"a bundle"}'), Buffer.from('{"torn'), Buffer.from([0x1f, 0x8b, 0xff, 0])]
    for (const bytes of bundles) {
      await assert.rejects(
        link.hydrate(suite.name, sessionId, {
          bytes,
          contentType: 'application/octet-stream',
          runtimeSessionId: 'seeded',
        }),
        (error) => isAppError(error) && error.status === 400,
      )
    }
    assert.equal(await link.exportState(suite.name, sessionId), undefined, 'nothing was seeded')
    await ask(link, suite.envelope(memory.tell('Marmalade'), { sessionId }))
    await assert.rejects(link.hydrate(suite.name, sessionId, { bytes: bundles[1]!, contentType: 'application/json' }))
    assert.match(await ask(link, suite.envelope(memory.ask, { sessionId })), /Marmalade/)
  })
}

function testWire(suite: RuntimeSuite): void {
  suite.check(
    'over the wire: health says ok and which runtime, and a malformed envelope is refused with 400',
    async (t) => {
      const subject = await suite.make(t)
      if (typeof subject !== 'string') return t.skip('not tested at a base URL')
      const health = await suite.at(subject).health()
      assert.equal(health.ok, true)
      assert.equal(typeof health.runtime, 'string')
      for (const body of ['{}', '{"torn', JSON.stringify({ ...suite.envelope('x'), prompt: 7 })]) {
        const url = new URL(`${subject}/run`)
        const request = { tenant: '', method: 'POST', target: url.pathname, body: Buffer.from(body) }
        const headers = { 'content-type': 'application/json', ...suite.script.sign?.(request) }
        const response = await fetch(url, { method: 'POST', headers, body })
        assert.equal(response.status, 400, body)
        await response.arrayBuffer()
      }
      assert.match(await ask(stamping(suite.at(subject)), suite.envelope(suite.script.say('still'))), /still/)
    },
  )
}

/** The part of these events that a conductor sends to another attempt: texts joined, up to the last tool result. */
function finishedPart(events: readonly RunEvent[]): Replay {
  const out: Replay = []
  for (const event of events.slice(0, events.findLastIndex(({ type }) => type === 'tool_result') + 1)) {
    const last = out.at(-1)
    if (event.type === 'assistant' && last?.type === 'assistant')
      out[out.length - 1] = { ...last, text: last.text + event.text }
    else if (event.type === 'assistant' || event.type === 'tool_call' || event.type === 'tool_result') out.push(event)
  }
  return out
}
