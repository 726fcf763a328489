import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import { endingOnly, type RunDispatch, type Task } from '#contracts/runs'
import { Pace } from '#kit'
import { type Calls, inputOf, requestOf } from './calls.ts'
import { type Evaluator, textOf, valueOf } from './evaluator.ts'
import type { Scope } from './expressions.ts'
import type { LargeTicket, LargeTurns } from './large-turns.ts'
import type { NodeOf } from './node.schema.ts'
import type { WorkflowRunStore } from './runs.store.ts'
import {
  bytesOf,
  type Claimed,
  type Failure,
  failureOf,
  isEarly,
  mostOutput,
  type Outcome,
  startedBy,
  timeoutMsOf,
  tooLarge,
} from './outcome.ts'
import { isLinked, type Outputs } from './outputs.ts'
import { itemOf, type Scopes } from './scopes.ts'
import { dueIn } from './times.ts'
import { templated } from './validate.ts'

/** A claimed node, and the run that it belongs to. */
export interface Attempt extends Claimed {
  readonly tenantId: string
  readonly runId: string
  /** Nesting depth: how many workflow runs are above this one. */
  readonly depth: number
  /** Id of the topmost workflow run. */
  readonly rootId: string
}

type Done = Outcome extends infer O ? (O extends Outcome ? Omit<O, 'node' | 'attempt'> : never) : never

/** Timeout of a call, unless its node sets `timeoutSeconds`. */
const callSeconds = 60
/** How deep child workflows may nest. */
const mostDepth = 5
/** How long a node is retried that cannot start because a limit is reached or no runner is available. */
const patienceMs = 3_600_000
/** It waits for a second, and then for its turn among those of its tenant that wait like it. */
const leastWaitMs = 1_000
/** Of however many, a process tries as many in this time as the tenant may have runs at once: so soon are all these places taken again. */
const refillMs = 5_000
const leastTries = 20

export interface ExecutionDeps {
  readonly store: WorkflowRunStore
  readonly dispatch: RunDispatch
  readonly calls: Calls
  readonly outputs: Outputs
  readonly scopes: Scopes
  readonly evaluator: Evaluator
  readonly large: LargeTurns
  readonly limits: TenantLimits | undefined
}

interface Making {
  readonly signal: AbortSignal
  readonly large: LargeTicket
}

/** Makes attempts at nodes: executes each type of node, and returns the outcome. */
export class Execution {
  readonly #deps: ExecutionDeps
  readonly #tries = new Pace({ atOnce: 1, longestMs: Infinity })
  constructor(deps: ExecutionDeps) {
    this.#deps = deps
  }

  /** Executes an attempt. Rejects only when `signal` aborted or the database cannot be reached: then the outcome is unknown. */
  async make(attempt: Attempt, signal: AbortSignal): Promise<Outcome> {
    const outcome = { node: attempt.id, attempt: attempt.attempt, ...(await this.#doneOf(attempt, signal)) } as Outcome
    this.#deps.limits?.stored.add(attempt.tenantId, bytesOf(outcome))
    return outcome
  }

  async #doneOf(attempt: Attempt, signal: AbortSignal): Promise<Done> {
    const large = this.#deps.large.ticket(attempt.tenantId)
    try {
      // Outputs may be far larger than requests, so a run makes no further attempt once its tenant's store is full.
      this.#deps.limits?.stored.admit(attempt.tenantId)
      return await this.#kept(attempt, await this.#do(attempt, { signal, large }))
    } catch (cause) {
      if (signal.aborted) throw cause
      if (isEarly(cause) && attempt.nowMs - attempt.startedMs < patienceMs) {
        const tries = Math.max(leastTries, this.#deps.limits?.of(attempt.tenantId).runningRuns ?? 0)
        return { kind: 'later', inMs: leastWaitMs + this.#tries.turnOf(attempt.tenantId, refillMs / tries)! }
      }
      const error = failureOf(cause)
      if (!error) throw cause
      return { kind: 'over', status: 'error', error }
    } finally {
      large.leave()
    }
  }

  /** Checks an output against the node's schema and converts it to its stored form: JSON, or a link to the object store. */
  async #kept(attempt: Attempt, done: Done): Promise<Done> {
    const { spec } = attempt
    // Only outputs of successful attempts are checked and converted. The output of a condition is just `true` or `false`.
    if (done.kind !== 'over' || done.status !== 'ok' || done.output === undefined || spec.type === 'condition')
      return done
    const kept = await this.#deps.outputs.take(attempt, spec, done.output)
    if (kept.status === 'ok') return { ...done, output: kept.output }
    // A retry of a map or loop would join the same parts and fail in the same way, so this error is not retryable.
    const isMade = spec.type === 'map' || spec.type === 'loop'
    return over(isMade ? { ...kept.error, retryable: false } : kept.error)
  }

  async #do(attempt: Attempt, { signal, large }: Making): Promise<Done> {
    const { spec, tenantId } = attempt
    const { evaluator } = this.#deps
    const scope = await this.#scopeOf(attempt, large)
    switch (spec.type) {
      case 'agent':
        return this.#agent(attempt, spec, scope)
      case 'tool':
      case 'http':
        return this.#call(attempt, spec, scope, { signal, large })
      case 'condition': {
        const { if: condition } = spec
        const taken = typeof condition === 'boolean' ? condition : await evaluator.holds(tenantId, condition, scope)
        const skips = (taken ? spec.else : spec.then) ?? []
        const kept = new Set((taken ? spec.then : spec.else) ?? [])
        return { kind: 'over', status: 'ok', output: String(taken), skips: skips.filter((id) => !kept.has(id)) }
      }
      case 'map':
        return this.#map(attempt, spec, scope, large)
      case 'loop':
        return this.#loop(attempt, spec, large)
      case 'wait':
        return this.#wait(attempt, spec, scope)
      case 'approval': {
        const id = newId('appr')
        const expiresInMs = spec.expiresIn === undefined ? undefined : spec.expiresIn * 1_000
        const { onExpiry = 'reject', role = 'member' } = spec
        const { message: made } = await evaluator.render(tenantId, { message: spec.message }, scope)
        const approval = { id, message: textOf(made).slice(0, 20_000), expiresInMs, onExpiry, role }
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

  /** The scope of a node's templates. The condition of a loop is included only when the last part has a result. */
  #scopeOf(attempt: Attempt, large: LargeTicket, more: Scope['values'] = {}, json: Scope['json'] = {}): Promise<Scope> {
    const { spec, part, item } = attempt
    const fields = spec as unknown as Readonly<Record<string, unknown>>
    const texts = templated[spec.type].map((field) => fields[field])
    const condition = spec.type === 'condition' && typeof spec.if === 'string' ? [spec.if] : []
    const given = itemOf(item)
    return this.#deps.scopes.of(
      attempt,
      {
        texts,
        conditions: Object.keys(json).length > 0 && spec.type === 'loop' ? [spec.until] : condition,
        values: { ...(part === undefined ? {} : { index: part, iteration: part }), ...more },
        json: { ...given, ...json },
      },
      large,
    )
  }

  async #agent(attempt: Attempt, spec: NodeOf<'agent'>, scope: Scope): Promise<Done> {
    const { tenantId, runId, rootId, budgetCents } = attempt
    const id = startedBy(runId, attempt.id, attempt.attempt)
    const { prompt: asked, metadata = {}, sessionId: session } = spec
    const made = await this.#deps.evaluator.render(
      tenantId,
      { prompt: asked, metadata, ...(session ? { session } : {}) },
      scope,
    )
    const prompt = textOf(made.prompt)
    const sessionId = made.session === undefined ? undefined : textOf(made.session)
    const task: Task & { readonly id: string } = {
      id,
      profile: spec.profile,
      prompt: prompt.replaceAll('\u0000', '\uFFFD'),
      ...(sessionId === undefined ? {} : { sessionId, whenBusy: 'enqueue' as const }),
      ...(spec.responseFormat ? { responseFormat: spec.responseFormat } : {}),
      metadata: {
        ...(await valueOf(made.metadata)),
        workflowRunId: runId,
        nodeId: attempt.id,
      },
      // The parent makes budgets per run count for the whole workflow, not for each agent.
      parent: { runId, rootId, depth: 1, ...(budgetCents === undefined ? {} : { budgetCents }) },
    }
    if (task.prompt === '')
      return over({ code: 'empty_prompt', message: 'The prompt came out empty.', retryable: false })
    const reading = new AbortController()
    try {
      // The id depends only on the attempt, so a repeated start joins the run that the first start began.
      const { events } = await this.#deps.dispatch.start(tenantId, task, endingOnly, reading.signal)
      void events[Symbol.asyncIterator]().return?.(undefined)
    } finally {
      reading.abort()
    }
    return { kind: 'parked', waitsFor: id, dueInMs: timeoutMsOf(spec) }
  }

  async #call(
    attempt: Attempt,
    spec: NodeOf<'tool' | 'http'>,
    scope: Scope,
    { signal: stop, large }: Making,
  ): Promise<Done> {
    const { tenantId } = attempt
    const timeoutMs = (spec.timeoutSeconds ?? callSeconds) * 1_000
    const late = AbortSignal.timeout(timeoutMs)
    const context = {
      tenantId,
      key: keyOf(attempt),
      attempt: attempt.attempt,
      signal: AbortSignal.any([stop, late]),
      enter: large.enter,
    }
    const { calls, evaluator } = this.#deps
    const call =
      spec.type === 'http'
        ? calls.http.bind(calls, await requestOf(evaluator, tenantId, spec, scope))
        : calls.tool.bind(calls, spec.tool, await inputOf(evaluator, tenantId, spec, scope))
    try {
      const result = await call(context)
      return 'error' in result ? over(result.error) : { kind: 'over', status: 'ok', output: result.output }
    } catch (cause) {
      if (stop.aborted || !late.aborted) throw cause
      return over({
        code: 'timeout',
        message: `The call took longer than ${timeoutMs / 1_000} seconds.`,
        unknown: true,
      })
    }
  }

  /** The first attempt divides a map into parts. A second attempt joins their outputs when these are large or must match a schema. */
  async #map(attempt: Attempt, spec: NodeOf<'map'>, scope: Scope, large: LargeTicket): Promise<Done> {
    const { store, outputs, evaluator } = this.#deps
    const { tenantId, runId } = attempt
    if (await store.lastPart(tenantId, runId, attempt.id)) {
      await large.enter()
      const parts = await store.partOutputs(tenantId, runId, attempt.id, mostOutput)
      const output = parts && (await outputs.join(attempt, parts))
      return output === undefined ? over(tooLarge) : { kind: 'over', status: 'ok', output }
    }
    const items = await evaluator.list(tenantId, spec.items, scope, this.#mostNodes(tenantId))
    if (!items) {
      return over({ code: 'no_array', message: '`items` did not come out as an array.', retryable: false })
    }
    const full = await this.#isFull(attempt, items.length)
    if (full) return over(full)
    const texts = items.map((item) => `{"item":${item}}`)
    return { kind: 'parts', items: texts, first: 0, atOnce: spec.concurrency ?? items.length }
  }

  /** Starts the next part of a loop. The loop ends when its condition holds for the last part, or after `max` parts. */
  async #loop(attempt: Attempt, spec: NodeOf<'loop'>, large: LargeTicket): Promise<Done> {
    const { store, outputs, evaluator } = this.#deps
    const { tenantId } = attempt
    const last = await store.lastPart(tenantId, attempt.runId, attempt.id)
    const next = last === undefined ? 0 : last.part + 1
    const output = last?.output ?? 'null'
    if (last) {
      const seen = { output, error: last.error ?? 'null' }
      const isLast = next >= spec.max
      const scope = isLast ? undefined : await this.#scopeOf(attempt, large, { iteration: last.part }, seen)
      const enough = scope === undefined || (await evaluator.holds(tenantId, spec.until, scope))
      if (enough) return { kind: 'over', status: 'ok', output: await outputs.read(attempt, output) }
    }
    const full = await this.#isFull(attempt, 1)
    if (full) return over(full)
    // A linked output is passed on as a link, without reading the object.
    const item = isLinked(output) ? output : `{"previous":${output}}`
    return { kind: 'parts', items: [item], first: next, atOnce: 1 }
  }
  #mostNodes(tenantId: string): number {
    return this.#deps.limits?.of(tenantId).workflowNodes ?? 100_000
  }
  async #isFull({ tenantId, runId }: Attempt, more: number): Promise<Failure | undefined> {
    const most = this.#mostNodes(tenantId)
    if (more <= most && (more === 0 || (await this.#deps.store.countNodes(tenantId, runId)) + more <= most))
      return undefined
    const message = `The limit workflowNodes of this tenant is ${most}: the most nodes of a run, including parts of maps and loops.`
    return { code: 'limit_exceeded', message, retryable: false }
  }

  async #wait(attempt: Attempt, spec: NodeOf<'wait'>, scope: Scope): Promise<Done> {
    const { signal } = spec
    const { seconds = null, until = null } = spec
    const dueInMs = dueIn(await this.#deps.evaluator.render(attempt.tenantId, { seconds, until }, scope), attempt.nowMs)
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
      return over({ code: 'too_deep', message: `Workflows may nest at most ${mostDepth} levels.`, retryable: false })
    }
    const id = startedBy(runId, attempt.id, attempt.attempt)
    await this.#deps.store.create(tenantId, {
      id,
      workflowDefinitionId: spec.workflowDefinitionId,
      input: (await this.#deps.evaluator.render(tenantId, { input: spec.input ?? {} }, scope)).input,
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

const over = (error: Failure): Done => ({ kind: 'over', status: 'error', error })
