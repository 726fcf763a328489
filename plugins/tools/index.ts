import { Type } from '@sinclair/typebox'
import { Counter } from 'prom-client'
import { CommaList, definePlugin, Duration, Settings, isAppError } from '#kernel'
import {
  type PlatformTool,
  PlatformTools,
  Toolkit,
  type ToolContext,
  type ToolResult,
  type ToolSpec,
} from '#contracts/tools'
import { createCalculate } from './builtin/calculate.ts'
import { currentTime } from './builtin/current-time.ts'
import { createHttpFetch } from './builtin/http-fetch.ts'
import { createSearchDocs } from './builtin/search-docs.ts'
import { createDelegate, WaitingDelegations } from './delegation.ts'
import { toolErrors } from './errors.ts'
import { randomUUID } from 'node:crypto'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { conductorCallStage, type Delegations } from '#contracts/delegation'
import { boundedResult } from '#kit'

/** The tools of a runner, its own and those of other plugins. Input is validated, time and output are bounded, and failures become plain sentences. */
export default definePlugin({
  name: 'tools',
  config: Settings({
    timeout: Duration('30s', 'Timeout of a tool.'),
    docs: Type.Optional(Type.String({ description: 'Folder with README.md and docs/; the one shipped by default.' })),
    httpFetchTimeout: Duration('10s'),
    httpFetchHosts: CommaList(
      'Hosts that `http_fetch` may read, `.example.com` with its subdomains; any public one by default.',
    ),
    // Conductors keep the limit of the tenant. A default here would hold whatever that limit says.
    delegationDepth: Type.Optional(
      Type.Integer({
        minimum: 0,
        description: 'How deep delegations may nest on this runner, whatever the limits of tenants; 0 allows none.',
      }),
    ),
  }),
  errors: toolErrors,
  requires: { added: PlatformTools },
  provides: { toolkit: Toolkit },
  async setup(ctx) {
    const { config, deps, log } = ctx
    const calls = new Counter({
      name: 'runner_tool_calls_total',
      help: 'Platform tool calls by tool and outcome.',
      labelNames: ['tool', 'outcome'],
      registers: [ctx.metrics],
    })
    const builtin = createBuiltinTools(config)
    ctx.onStop(() => builtin.close())
    const delegations = new WaitingDelegations()
    const delegate = createDelegate(delegations, config.delegationDepth)
    const tools = new Map<string, PlatformTool>([...Object.entries(builtin.tools), ['delegate', delegate]])
    for (const [name, tool] of deps.added) {
      if (tools.has(name)) throw new Error(`a plugin adds a tool '${name}', but there already is one of this name`)
      tools.set(name, tool)
    }
    for (const tool of tools.values()) if (tool.load) ctx.loads(() => tool.load!())
    const count = (tool: string, outcome: string): void => calls.inc({ tool, outcome })
    return { toolkit: createToolkit(tools, { timeoutMs: config.timeout, delegations, log, count }) }
  },
})

interface BuiltinToolSettings {
  /** A folder with README.md and docs/. Undefined uses the shipped documentation. */
  readonly docs?: string | undefined
  readonly httpFetchTimeout: number
  /** Empty allows any public host. */
  readonly httpFetchHosts: readonly string[]
}

/** The tools that every runner has, by name. */
export function createBuiltinTools({ docs, httpFetchTimeout, httpFetchHosts }: BuiltinToolSettings) {
  const httpFetch = createHttpFetch({ timeoutMs: httpFetchTimeout, allowHosts: httpFetchHosts })
  const all = [createCalculate(), currentTime, createSearchDocs(docs), httpFetch.tool]
  const tools: Readonly<Record<string, PlatformTool>> = Object.fromEntries(all.map((tool) => [tool.name, tool]))
  return { tools, close: httpFetch.close }
}

type Outcome = 'ok' | 'failed' | 'threw' | 'timeout' | 'aborted' | 'invalid' | 'unknown'

interface ToolkitOptions {
  readonly delegations: Delegations
  readonly timeoutMs: number
  readonly log: { warn(fields: object, message: string): void }
  readonly count: (tool: string, outcome: Outcome) => void
}

interface Registered {
  readonly tool: PlatformTool
  readonly spec: ToolSpec
  readonly valid: ValidateFunction
}

/** Compiles every tool's schema once; a schema that does not compile fails the boot by the tool's name. */
export function createToolkit(tools: ReadonlyMap<string, PlatformTool>, options: ToolkitOptions): Toolkit {
  const ajv = new Ajv({ strict: false, useDefaults: true, validateFormats: false, logger: false })
  const registry = new Map<string, Registered>()
  for (const [name, tool] of [...tools].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const spec = { name, description: tool.description, inputSchema: tool.inputSchema }
    registry.set(name, { tool, spec, valid: compile(ajv, name, tool) })
  }
  const everything = [...registry.values()].map((entry) => entry.spec)
  return {
    specs(names) {
      if (!names) return [...everything]
      const wanted = new Set(names)
      return everything.filter((spec) => wanted.has(spec.name))
    },
    delegations: options.delegations,
    async invoke(name, input, context) {
      const entry = registry.get(name)
      if (!entry) {
        // A model chooses this name freely, so it must not become a metric label.
        options.count('other', 'unknown')
        return { ok: false, content: 'There is no tool of that name.' }
      }
      // Ajv fills defaults in place, and the caller's object is not ours to change.
      const given: unknown = structuredClone(input ?? {})
      if (!entry.valid(given)) {
        options.count(name, 'invalid')
        return { ok: false, content: `The input of '${name}' is invalid: ${complaint(entry.valid.errors)}.` }
      }
      const [outcome, result] = await attempt(entry.tool, name, given as Record<string, unknown>, context, options)
      options.count(name, outcome)
      return { ok: result.ok, content: boundedResult(result.content) }
    },
  }
}

/** Calls the tool with a timeout. The caller gets an answer in time even if the tool ignores its signal. */
async function attempt(
  tool: PlatformTool,
  name: string,
  input: Record<string, unknown>,
  context: ToolContext,
  { timeoutMs: usual, log, delegations }: ToolkitOptions,
): Promise<[Outcome, ToolResult]> {
  if (context.signal.aborted) return aborted(name)
  const { timeoutMs = usual } = tool
  const abort = new AbortController()
  let timer: NodeJS.Timeout | undefined
  let leave: (() => void) | undefined
  const stopped = new Promise<[Outcome, ToolResult]>((resolve) => {
    timer = setTimeout(() => {
      resolve(['timeout', { ok: false, content: `'${name}' took longer than ${timeoutMs / 1000} s and was stopped.` }])
      abort.abort(new Error('tool timeout'))
    }, timeoutMs)
    leave = () => {
      resolve(aborted(name))
      abort.abort(context.signal.reason)
    }
    context.signal.addEventListener('abort', leave, { once: true })
  })
  const inner = { ...context, signal: abort.signal }
  // A tool can ask the conductor only under its own name, so it cannot use the conductor's part of another tool.
  const askConductor = (given: Readonly<Record<string, unknown>>) => asked(delegations, name, given, inner)
  const done = run(tool, input, context.report ? { ...inner, askConductor } : inner).then(
    (result): [Outcome, ToolResult] => [result.ok ? 'ok' : 'failed', result],
    (err: unknown): [Outcome, ToolResult] => {
      if (!abort.signal.aborted) log.warn({ err, tool: name }, 'a tool threw')
      // Only the sentence of an AppError is shown: the text of an unknown exception may hold secrets.
      const sentence = isAppError(err) ? err.sentence : undefined
      return ['threw', { ok: false, content: sentence ?? `'${name}' failed.` }]
    },
  )
  try {
    return await Promise.race([done, stopped])
  } finally {
    clearTimeout(timer)
    if (leave) context.signal.removeEventListener('abort', leave)
  }
}

/** Lets the conductor of the run execute the call. Resolves to the conductor's answer. */
async function asked(
  delegations: Delegations,
  tool: string,
  input: Readonly<Record<string, unknown>>,
  context: ToolContext,
): Promise<ToolResult> {
  const { runId, idempotencyKey, report } = context
  const call = { id: idempotencyKey ?? randomUUID(), parentRunId: runId, tool, input: { ...input } }
  const answer = delegations.call(context, call)
  report?.({ type: 'progress', stage: conductorCallStage, message: `'${tool}' is executed by the conductor.` })
  const { ok, content } = await answer
  return { ok, content }
}

const aborted = (name: string): [Outcome, ToolResult] => ['aborted', { ok: false, content: `'${name}' was stopped.` }]

// The async function turns an exception before the tool's first await into a rejection.
const run = async (tool: PlatformTool, input: Record<string, unknown>, context: ToolContext): Promise<ToolResult> =>
  tool.execute(input, context)

function compile(ajv: Ajv, name: string, tool: PlatformTool): ValidateFunction {
  try {
    return ajv.compile(tool.inputSchema)
  } catch (cause) {
    throw new Error(`the input schema of tool '${name}' does not compile: ${(cause as Error).message}`, { cause })
  }
}

function complaint(errors: readonly ErrorObject[] | null | undefined): string {
  const first = errors?.[0]
  if (!first) return 'it does not match the schema'
  const where = first.instancePath === '' ? 'it' : first.instancePath.slice(1).replaceAll('/', '.')
  const extra = (first.params as { additionalProperty?: unknown }).additionalProperty
  return `${where} ${first.message ?? 'is wrong'}${typeof extra === 'string' ? ` ('${extra}')` : ''}`
}
