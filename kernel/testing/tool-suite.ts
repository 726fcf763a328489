import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { Ajv } from 'ajv'
import { type Entry, isAppError, type Plugin } from '#kernel'
import { type PlatformTool, PlatformTools, type ToolContext, type ToolResult } from '#contracts/tools'
import { entriesOf } from './kernel.ts'

/** One call and its expected outcome. */
export interface ToolCase {
  readonly tool: string
  readonly input: Readonly<Record<string, unknown>>
  /** Whether the tool succeeds; true by default. */
  readonly ok?: boolean
  readonly matches?: RegExp
}

export interface ToolScript {
  /** At least one call for each tool of the plugin, so that every tool is tested. */
  readonly calls: readonly ToolCase[]
  /** A call that continues until it is stopped. */
  readonly slow?: Pick<ToolCase, 'tool' | 'input'>
  /** A call whose effect must happen once per `idempotencyKey`, and a count of the effects. */
  readonly effect?: Pick<ToolCase, 'tool' | 'input'> & { count(): number | Promise<number> }
}

const timeout = 20_000
/** The form of function names that every model server accepts. */
const nameForm = /^[a-zA-Z0-9_-]{1,64}$/

/** A call's context as the runner makes it. */
export const testToolContext = (fields: Partial<ToolContext> = {}): ToolContext => ({
  tenantId: 'default',
  sessionId: 'sess-00000000-00000000',
  profileName: 'test',
  runId: `run_${randomUUID()}`,
  depth: 0,
  signal: new AbortController().signal,
  ...fields,
})

/** The contract of a plugin that adds tools, as tests. `make` gives the plugin and its requirements; called for each test. */
export function testToolProvider(
  name: string,
  make: (t: TestContext) => Promise<readonly (Plugin | Entry)[]> | readonly (Plugin | Entry)[],
  script: ToolScript,
): void {
  const check = (sentence: string, body: (tools: Tools, t: TestContext) => Promise<void>): void =>
    void test(`${name}: ${sentence}`, { timeout }, async (t) =>
      body(await entriesOf(t, PlatformTools, await make(t)), t),
    )

  check('each tool has a name and a description that a model can use, and a schema that compiles', async (tools) => {
    assert.ok(tools.size > 0, 'the plugin adds tools')
    for (const [key, tool] of tools) {
      assert.match(key, nameForm)
      assert.notEqual(tool.description.trim(), '', `${key} says what it is for`)
      assert.equal(tool.inputSchema['type'], 'object', `${key} takes an object`)
      assert.doesNotThrow(() => validatorOf(tool), `the schema of ${key}`)
    }
  })

  check('every tool has a case, and each does what it says', async (tools) => {
    const tried = new Set(script.calls.map(({ tool }) => tool))
    assert.deepEqual(
      [...tools.keys()].filter((key) => !tried.has(key)),
      [],
      'tools without a case',
    )
    for (const { tool, input, ok = true, matches } of script.calls) {
      const result = await call(tools, tool, input)
      assert.equal(result.ok, ok, `${tool} ${JSON.stringify(input)} answers ${JSON.stringify(result)}`)
      if (matches) assert.match(result.content, matches)
    }
  })

  check('calls at once do not disturb each other', async (tools) => {
    const results = await Promise.all(script.calls.map(({ tool, input }) => call(tools, tool, input)))
    assert.deepEqual(
      results.map(({ ok }) => ok),
      script.calls.map(({ ok = true }) => ok),
    )
  })

  const { slow, effect } = script
  if (slow) {
    check('a slow call stops when its signal aborts', async (tools) => {
      const abort = new AbortController()
      const result = call(tools, slow.tool, slow.input, { signal: abort.signal })
      setImmediate(() => abort.abort())
      const settled = await result.catch((error: unknown) => error)
      assert.ok(settled instanceof Error || (settled as ToolResult).ok === false, 'a stopped call is no success')
    })
  }

  if (effect) {
    check('a call that is executed again has its effect once', async (tools) => {
      const before = await effect.count()
      const context = { idempotencyKey: `${randomUUID()}:call_1` }
      await call(tools, effect.tool, effect.input, context)
      await call(tools, effect.tool, effect.input, context)
      assert.equal((await effect.count()) - before, 1)
      await call(tools, effect.tool, effect.input, { idempotencyKey: `${randomUUID()}:call_1` })
      assert.equal((await effect.count()) - before, 2, 'another call has an effect of its own')
    })
  }
}

type Tools = ReadonlyMap<string, PlatformTool>

/** Fills in defaults and checks the input, as the runner's toolkit does. */
const validatorOf = (tool: PlatformTool) =>
  new Ajv({ strict: false, useDefaults: true, validateFormats: false, logger: false }).compile(tool.inputSchema)

async function call(
  tools: Tools,
  name: string,
  input: Readonly<Record<string, unknown>>,
  context: Partial<ToolContext> = {},
): Promise<ToolResult> {
  const tool = tools.get(name)
  assert.ok(tool, `the plugin adds a tool '${name}'`)
  const given: unknown = structuredClone(input)
  const valid = validatorOf(tool)
  if (!valid(given)) return { ok: false, content: `The input is invalid: ${JSON.stringify(valid.errors)}` }
  const result = await told(tool, given as Record<string, unknown>, testToolContext(context))
  assert.equal(typeof result.ok, 'boolean')
  assert.equal(typeof result.content, 'string')
  return result
}

/** A thrown AppError with a sentence is an answer; any other exception is a bug of the tool. */
async function told(
  tool: PlatformTool,
  input: Readonly<Record<string, unknown>>,
  context: ToolContext,
): Promise<ToolResult> {
  try {
    return await tool.execute(input, context)
  } catch (error) {
    if (isAppError(error) && error.sentence !== undefined) return { ok: false, content: error.sentence }
    throw error
  }
}
