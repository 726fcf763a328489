import { createHash } from 'node:crypto'
import type { AskedNode } from '#contracts/approvals'
import { isAppError } from '#kernel'
import { measureJson } from '#kit'
import { ExpressionError } from './expressions.ts'
import type { NodeOf, WorkflowNode } from './node.schema.ts'
import type { TerminalStatus } from './schema.ts'

/** Why a node or run failed. `unknown`: its effect may have happened, so a repeated call has the same idempotency key. */
export interface Failure {
  readonly code: string
  readonly message: string
  readonly retryable?: boolean
  readonly unknown?: boolean
  readonly [more: string]: unknown
}

/** The outcome of an attempt at a node. JSON of tenants is text, which is parsed only where it is used; large outputs are links. */
export type Outcome = { readonly node: string; readonly attempt: number } & Come
/** An outcome without the node and the attempt that it belongs to. */
type Come =
  | {
      readonly kind: 'over'
      readonly status: TerminalStatus
      readonly output?: string
      readonly error?: Failure
      /** Of a condition: the nodes of the branch that was not taken. */
      readonly skips?: readonly string[]
      readonly costCents?: number
    }
  /** The node is no longer executed: it waits for an event (`waitsFor`), for a time (`dueInMs`), or for both. */
  | { readonly kind: 'parked'; readonly waitsFor?: string; readonly dueInMs?: number; readonly approval?: NewApproval }
  /** A map or loop is divided into parts: their items as JSON, the index of the first one, and how many run at once. */
  | { readonly kind: 'parts'; readonly items: readonly string[]; readonly first: number; readonly atOnce: number }
  /** The attempt could not begin yet: the same attempt is repeated after `inMs`. */
  | { readonly kind: 'later'; readonly inMs: number }
  /** The process stopped executing the attempt, so its outcome is unknown. */
  | { readonly kind: 'lost' }

type NewApproval = Omit<AskedNode, 'workflowRunId' | 'nodeId'>

/** Bytes that a part of a map or loop takes, besides its item. */
const bytesOfPart = 400
export type Over = Extract<Outcome, { kind: 'over' }>
/** Whether an attempt succeeded and skips no nodes, as most do. Only the nodes that depend on it change, so one statement can store the outcome. */
export const isWell = (one: Outcome): one is Over => one.kind === 'over' && one.status === 'ok' && !one.skips?.length

/** Bytes of an event about a node, besides its error. */
export const bytesOfEvent = 200
/** About how many bytes an outcome stores, with the event that tells it. Characters count as bytes, since most take one byte. */
export function bytesOf(outcome: Come): number {
  switch (outcome.kind) {
    case 'parts':
      return outcome.items.reduce((sum, item) => sum + bytesOfPart + item.length, 0)
    case 'parked':
      return bytesOfEvent + (outcome.approval?.message.length ?? 0)
    case 'over': {
      const { output, error } = outcome
      return bytesOfEvent + (output?.length ?? 0) + (error ? 2 * JSON.stringify(error).length : 0)
    }
    default:
      return bytesOfEvent
  }
}

/** A node that a process has claimed, as its attempt sees it. */
export interface Claimed {
  readonly id: string
  readonly attempt: number
  /** Number of the attempt in the idempotency key. It stays the same while the effect of an earlier attempt is unknown. */
  readonly effect: number
  readonly spec: WorkflowNode
  readonly part: number | undefined
  /** The value that a map or loop gives to this part, as JSON or as a link. */
  readonly item: string | undefined
  readonly startedMs: number
  /** When it was claimed, by the clock of the database. */
  readonly nowMs: number
  /** Cents that the agents of this node may cost. Undefined: the run has no limit. */
  readonly budgetCents: number | undefined
}

/** The id of the run that an attempt at an agent or child workflow starts. It depends only on the attempt, so repeated starts join one run. */
export const startedBy = (runId: string, node: string, attempt: number): string =>
  `${runId}-${createHash('sha256').update(node).digest('hex').slice(0, 10)}-${attempt}`

/** The largest output of a node or run, in characters of JSON. */
export const mostOutput = 10 * 1024 * 1024

/** The most values and names of JSON that is parsed in one step: as many as a body may have. */
export const mostParts = 200_000
export const hasTooManyParts = (json: string): boolean =>
  json.length > mostParts && measureJson(Buffer.from(json), undefined, mostParts).parts > mostParts

export const unsaid: Failure = { code: 'failed', message: 'The node failed.' }
export const tooLarge: Failure = {
  code: 'output_too_large',
  message: 'The output is larger than 10 MiB.',
  retryable: false,
}
export const overBudget: Failure = {
  code: 'budget_exceeded',
  message: 'The agents of the workflow have used up `maxCostCents`.',
  retryable: false,
}
export const lostError: Failure = {
  code: 'lost',
  message: 'The server that made the call stopped before its answer was known.',
  unknown: true,
}

/** Milliseconds until the next try, after `tries` retries. */
export const delayMs = (retry: NonNullable<WorkflowNode['retry']>, tries: number): number =>
  Math.min((retry.delaySeconds ?? 1) * (retry.factor ?? 2) ** tries, retry.maxDelaySeconds ?? 300) * 1_000

/** How an approval ends its node. */
export function approvalOutcome(
  approve: boolean,
  about: { readonly by: string; readonly comment?: string | undefined },
): { kind: 'over'; status: 'ok' | 'error'; output?: string; error?: Failure } {
  const decision = approve ? 'approve' : 'reject'
  if (approve) return { kind: 'over', status: 'ok', output: JSON.stringify({ decision, ...about }) }
  const said = about.comment ? `: ${about.comment}` : '.'
  return {
    kind: 'over',
    status: 'error',
    error: { code: 'rejected', message: `The approval was rejected${said}`, retryable: false, ...about },
  }
}

export function agentFailure(run: { status: string; error?: { code: string; message: string } } | undefined): Failure {
  if (!run) return { code: 'run_gone', message: 'The run of the agent no longer exists.' }
  return {
    code: run.error?.code ?? `run_${run.status}`,
    message: run.error?.message ?? `The run of the agent ended as ${run.status}.`,
  }
}

/** Timeout of an agent in milliseconds, a day by default. Time in which the agent waits for people does not count. */
export const timeoutMsOf = ({ timeoutSeconds = 86_400 }: NodeOf<'agent'>): number => timeoutSeconds * 1_000

/** The outcome of a node whose waiting time is over. */
export function timeUp(spec: WorkflowNode): { kind: 'over'; status: 'ok' | 'error'; output?: string; error?: Failure } {
  if (spec.type === 'wait' && spec.signal === undefined) return { kind: 'over', status: 'ok', output: 'null' }
  const error =
    spec.type === 'wait'
      ? { code: 'timeout', message: `The signal '${spec.signal}' did not come in time.`, retryable: false }
      : { code: 'timeout', message: 'The node took longer than its limit.' }
  return { kind: 'over', status: 'error', error }
}

/** A rejection with 429 or 503 means that nothing was started. Failures of a started call are part of its outcome instead. */
export const isEarly = (cause: unknown): boolean =>
  isAppError(cause) && (cause.status === 429 || (cause.status === 503 && cause.retryable))

/** Converts an error to a failure on which the author or caller can act. Undefined: an internal error, so the outcome of the attempt is unknown. */
export function failureOf(cause: unknown): Failure | undefined {
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
