import { isAppError } from '#kernel'
import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import { endingOnly, type RunDispatch, type Task } from '#contracts/runs'
import type { Calls, HttpCall } from './calls.ts'
import {
  ExpressionError,
  holds,
  mentionedIn,
  patiently,
  render,
  renderText,
  type Scope,
  textsIn,
} from './expressions.ts'
import type { NodeOf } from './node.schema.ts'
import type { WorkflowRunStore } from './runs.store.ts'
import {
  type Claimed,
  type Failure,
  mostOutput,
  type Outcome,
  scopeOfNodes,
  startedBy,
  timeoutMsOf,
  tooLarge,
} from './outcome.ts'
import { templated } from './validate.ts'

/** A claimed node, and the run that it belongs to. */
export interface Attempt extends Claimed {
  readonly tenantId: string
  readonly runId: string
  /** How many workflows led to this one. */
  readonly depth: number
  /** The workflow run at the top. */
  readonly rootId: string
}

type Done = Outcome extends infer O ? (O extends Outcome ? Omit<O, 'node' | 'attempt'> : never) : never

/** How long a call may take unless its node says so. */
const callSeconds = 60
/** Workflows inside one another. */
const mostDepth = 5
const longestWaitMs = 366 * 86_400_000
/** What cannot be begun yet, because a limit is reached or no runner is there, is tried again for so long. */
const patienceMs = 3_600_000

export interface ExecutionDeps {
  readonly store: WorkflowRunStore
  readonly dispatch: RunDispatch
  readonly calls: Calls
  readonly limits: TenantLimits | undefined
}

/** Makes attempts at nodes: what each type does, and what came of it. */
export class Execution {
  readonly #deps: ExecutionDeps
  constructor(deps: ExecutionDeps) {
    this.#deps = deps
  }

  /** Never rejects, except when `signal` aborted or the database is away: then nobody knows what came of it. */
  async make(attempt: Attempt, signal: AbortSignal): Promise<Outcome> {
    const of = { node: attempt.id, attempt: attempt.attempt }
    try {
      // Outputs may be larger than all that was sent: a run that began before its tenant's store was full goes no further.
      this.#deps.limits?.stored.admit(attempt.tenantId)
      const done = await this.#do(attempt, signal)
      this.#deps.limits?.stored.add(attempt.tenantId, bytesOf(done))
      return { ...of, ...done } as Outcome
    } catch (cause) {
      if (signal.aborted) throw cause
      // Nothing has begun: what a call meets once it has is in its outcome.
      const isEarly = isAppError(cause) && (cause.status === 429 || (cause.status === 503 && cause.retryable))
      if (isEarly && Date.now() - attempt.startedMs < patienceMs) {
        return { ...of, kind: 'later', inMs: 1_000 + Math.random() * 4_000 }
      }
      const error = failureOf(cause)
      if (!error) throw cause
      return { ...of, kind: 'over', status: 'error', error }
    }
  }

  async #do(attempt: Attempt, signal: AbortSignal): Promise<Done> {
    const { spec } = attempt
    const scope = await this.#scopeOf(attempt)
    switch (spec.type) {
      case 'agent':
        return this.#agent(attempt, spec, scope)
      case 'tool':
      case 'http':
        return this.#call(attempt, spec, scope, signal)
      case 'condition': {
        const { if: condition } = spec
        const taken = typeof condition === 'boolean' ? condition : await patiently(() => holds(condition, scope))
        const skips = (taken ? spec.else : spec.then) ?? []
        const kept = new Set((taken ? spec.then : spec.else) ?? [])
        return { kind: 'over', status: 'ok', output: String(taken), skips: skips.filter((id) => !kept.has(id)) }
      }
      case 'map':
        return this.#map(attempt, spec, scope)
      case 'loop':
        return this.#loop(attempt, spec, scope)
      case 'wait':
        return this.#wait(attempt, spec, scope)
      case 'approval': {
        const id = newId('appr')
        const expiresInMs = spec.expiresIn === undefined ? undefined : spec.expiresIn * 1_000
        const message = (await patiently(() => renderText(spec.message, scope))).slice(0, 20_000)
        const { onExpiry = 'reject', role = 'member' } = spec
        const approval = { id, message, expiresInMs, onExpiry, role }
        return {
          kind: 'parked',
          waitsFor: id,
          ...(expiresInMs === undefined ? {} : { dueInMs: expiresInMs }),
          approval,
        }
      }
      case 'workflow':
        return this.#child(attempt, spec, scope)
    }
  }

  /** What templates of a node see: only what they name is read. */
  async #scopeOf({ tenantId, runId, spec, part, item }: Attempt): Promise<Scope> {
    const fields = spec as unknown as Readonly<Record<string, unknown>>
    const texts = [...templated[spec.type], 'if', 'until'].flatMap((field) =>
      [...textsIn(fields[field])].map(({ text }) => text),
    )
    const isUsed = texts.some((text) => text.includes('{{') || text.includes('{%'))
    const isAsked = spec.type === 'loop' || (spec.type === 'condition' && typeof spec.if === 'string')
    if (!isUsed && !isAsked) return {}
    const { run, nodes } = await this.#deps.store.scope(tenantId, runId, texts.flatMap(mentionedIn))
    const given = item === undefined ? {} : (JSON.parse(item) as { item?: unknown; previous?: unknown })
    return {
      input: JSON.parse(run.input) as unknown,
      run: { id: runId, name: run.name },
      nodes: scopeOfNodes(nodes),
      ...(part === undefined ? {} : { index: part, iteration: part }),
      ...given,
    }
  }

  async #agent(attempt: Attempt, spec: NodeOf<'agent'>, scope: Scope): Promise<Done> {
    const { tenantId, runId, rootId, budgetCents } = attempt
    const id = startedBy(runId, attempt.id, attempt.attempt)
    const sessionId = spec.sessionId === undefined ? undefined : renderText(spec.sessionId, scope)
    const prompt = await patiently(() => renderText(spec.prompt, scope))
    const task: Task & { readonly id: string } = {
      id,
      profile: spec.profile,
      prompt: prompt.replaceAll('\u0000', '\uFFFD'),
      ...(sessionId === undefined ? {} : { sessionId, whenBusy: 'enqueue' as const }),
      ...(spec.responseFormat ? { responseFormat: spec.responseFormat as NonNullable<Task['responseFormat']> } : {}),
      metadata: {
        ...(render(spec.metadata ?? {}, scope) as Record<string, unknown>),
        workflowRunId: runId,
        nodeId: attempt.id,
      },
      // Budgets per run count for the whole workflow.
      parent: { runId, rootId, depth: 1, ...(budgetCents === undefined ? {} : { budgetCents }) },
    }
    if (task.prompt === '')
      return over({ code: 'empty_prompt', message: 'The prompt came out empty.', retryable: false })
    const reading = new AbortController()
    try {
      // A repeated start joins the run that the first one has begun.
      const { events } = await this.#deps.dispatch.start(tenantId, task, endingOnly, reading.signal)
      void events[Symbol.asyncIterator]().return?.(undefined)
    } finally {
      reading.abort()
    }
    return { kind: 'parked', waitsFor: id, dueInMs: timeoutMsOf(spec) }
  }

  async #call(attempt: Attempt, spec: NodeOf<'tool' | 'http'>, scope: Scope, stop: AbortSignal): Promise<Done> {
    const timeoutMs = (spec.timeoutSeconds ?? callSeconds) * 1_000
    const late = AbortSignal.timeout(timeoutMs)
    const context = {
      tenantId: attempt.tenantId,
      key: keyOf(attempt),
      attempt: attempt.attempt,
      signal: AbortSignal.any([stop, late]),
    }
    const { calls } = this.#deps
    const call = await patiently(() =>
      spec.type === 'tool' ? render(spec.arguments ?? {}, scope) : requestOf(spec, scope),
    )
    try {
      const result = await (spec.type === 'tool'
        ? calls.tool(spec.tool, call as Record<string, unknown>, context)
        : calls.http(call as HttpCall, context))
      if ('error' in result) return over(result.error)
      return overWith(result.output)
    } catch (cause) {
      if (stop.aborted || !late.aborted) throw cause
      return over({
        code: 'timeout',
        message: `The call took longer than ${timeoutMs / 1_000} seconds.`,
        unknown: true,
      })
    }
  }

  async #map(attempt: Attempt, spec: NodeOf<'map'>, scope: Scope): Promise<Done> {
    const items = await patiently(() => render(spec.items, scope))
    if (!Array.isArray(items)) {
      return over({ code: 'no_array', message: '`items` did not come out as an array.', retryable: false })
    }
    const full = await this.#isFull(attempt, items.length)
    if (full) return over(full)
    const texts = items.map((item: unknown) => JSON.stringify({ item: item ?? null }))
    return { kind: 'parts', items: texts, first: 0, atOnce: spec.concurrency ?? items.length }
  }

  /** The next part of a loop, unless its condition holds for the last one, or there were as many as may be. */
  async #loop(attempt: Attempt, spec: NodeOf<'loop'>, scope: Scope): Promise<Done> {
    const last = await this.#deps.store.lastPart(attempt.tenantId, attempt.runId, attempt.id)
    const next = last === undefined ? 0 : last.part + 1
    const output = last?.output ?? 'null'
    if (last) {
      const value = JSON.parse(output) as unknown
      const error = last.error === null ? null : (JSON.parse(last.error) as unknown)
      const seen = { ...scope, output: value, error, iteration: last.part }
      const enough = next >= spec.max || (await patiently(() => holds(spec.until, seen)))
      if (enough) return { kind: 'over', status: 'ok', output }
    }
    const full = await this.#isFull(attempt, 1)
    if (full) return over(full)
    return { kind: 'parts', items: [`{"previous":${output}}`], first: next, atOnce: 1 }
  }
  async #isFull({ tenantId, runId }: Attempt, more: number): Promise<Failure | undefined> {
    const most = this.#deps.limits?.of(tenantId).workflowNodes ?? 100_000
    if (more <= most && (more === 0 || (await this.#deps.store.countNodes(tenantId, runId)) + more <= most))
      return undefined
    const message = `The limit workflowNodes of this tenant is ${most}: so many nodes a run may have, parts of maps and loops included.`
    return { code: 'limit_exceeded', message, retryable: false }
  }

  async #wait(attempt: Attempt, spec: NodeOf<'wait'>, scope: Scope): Promise<Done> {
    const { signal } = spec
    const dueInMs = await patiently(() => dueIn(spec, scope))
    if (typeof dueInMs === 'object') return over(dueInMs)
    if (dueInMs === 0 && signal === undefined) return { kind: 'over', status: 'ok', output: 'null' }
    return {
      kind: 'parked',
      ...(signal === undefined ? {} : { waitsFor: `signal/${attempt.runId}/${signal}` }),
      ...(dueInMs === undefined ? {} : { dueInMs }),
    }
  }

  async #child(attempt: Attempt, spec: NodeOf<'workflow'>, scope: Scope): Promise<Done> {
    const { tenantId, runId, rootId, depth, budgetCents } = attempt
    if (depth >= mostDepth) {
      return over({ code: 'too_deep', message: `Workflows are at most ${mostDepth} deep.`, retryable: false })
    }
    const id = startedBy(runId, attempt.id, attempt.attempt)
    await this.#deps.store.create(tenantId, {
      id,
      workflowDefinitionId: spec.workflowDefinitionId,
      input: await patiently(() => render(spec.input ?? {}, scope)),
      start: true,
      createdBy: runId,
      parent: { runId, rootId, nodeId: attempt.id, depth: depth + 1, budgetCents },
    })
    const { timeoutSeconds } = spec
    return {
      kind: 'parked',
      waitsFor: id,
      ...(timeoutSeconds === undefined ? {} : { dueInMs: timeoutSeconds * 1_000 }),
    }
  }
}

const keyOf = ({ runId, id, effect }: Attempt): string => `${runId}/${id}/${effect}`

/** A node of a map or loop beside its item. */
const bytesOfPart = 400
/** What an outcome stores, nearly: texts are mostly of one byte a character. */
function bytesOf(done: Done): number {
  if (done.kind === 'parts') return done.items.reduce((sum, item) => sum + bytesOfPart + item.length, 0)
  return done.kind === 'over' ? (done.output?.length ?? 0) : 0
}

const over = (error: Failure): Done => ({ kind: 'over', status: 'error', error })
function overWith(output: unknown): Done {
  const text = JSON.stringify(output) ?? 'null'
  return text.length > mostOutput ? over(tooLarge) : { kind: 'over', status: 'ok', output: text }
}

function requestOf(spec: NodeOf<'http'>, scope: Scope) {
  return {
    url: renderText(spec.url, scope),
    method: spec.method ?? 'GET',
    headers: Object.fromEntries(
      Object.entries(spec.headers ?? {}).map(([name, value]) => [
        name,
        renderText(value, scope).replaceAll(/[\r\n\0]/g, ''),
      ]),
    ),
    body: spec.body === undefined ? undefined : render(spec.body, scope),
    expect: spec.expect,
  }
}

/** In how many milliseconds a wait ends; undefined: not by itself. */
function dueIn(spec: NodeOf<'wait'>, scope: Scope): number | Failure | undefined {
  if (spec.seconds !== undefined) {
    const seconds = Number(typeof spec.seconds === 'string' ? render(spec.seconds, scope) : spec.seconds)
    if (!(seconds >= 0 && seconds * 1_000 <= longestWaitMs)) {
      return {
        code: 'bad_time',
        message: '`seconds` did not come out as a number of seconds within a year.',
        retryable: false,
      }
    }
    return seconds * 1_000
  }
  if (spec.until === undefined) return undefined
  const at = Date.parse(renderText(spec.until, scope))
  if (!(at - Date.now() <= longestWaitMs)) {
    return { code: 'bad_time', message: '`until` did not come out as a time within a year.', retryable: false }
  }
  return Math.max(0, at - Date.now())
}

/** What an author or caller can act on. Undefined: something is wrong here, and nobody knows what came of the attempt. */
function failureOf(cause: unknown): Failure | undefined {
  if (cause instanceof ExpressionError) {
    return {
      code: 'bad_expression',
      message: `A template or condition could not be used: ${cause.message}.`,
      retryable: false,
    }
  }
  if (!isAppError(cause)) return undefined
  const { code, sentence, status } = cause
  return { code, message: sentence ?? code, ...(status < 500 && status !== 429 ? { retryable: false } : {}) }
}
