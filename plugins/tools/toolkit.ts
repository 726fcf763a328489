import { randomUUID } from 'node:crypto'
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv'
import { isAppError } from '#kernel'
import { conductorCallStage, type Delegations } from '#contracts/delegation'
import { boundedResult } from '#kit'
import type { PlatformTool, ToolContext, Toolkit, ToolResult, ToolSpec } from '#contracts/tools'

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
        // The name is a model's free text: it must not become a metric label.
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

/** Calls the tool. The caller gets an answer in time, also when the tool ignores its signal. */
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
  // Under its own name: a tool has no other tool's part of the conductor.
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

/** Has the conductor of the run execute the call, and resolves to what it answers. */
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

// An async frame, so that a tool that throws before its first await rejects like any other.
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
