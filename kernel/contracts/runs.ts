import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { type PromptFields, promptInfoFields, sentPromptFields } from './prompt.ts'
import { type LogChunk, UsageEvent } from './run-event.ts'

/** `queued`: the run was accepted while its session was busy. It has no runner and no events yet. */
export const runStatuses = ['queued', 'running', 'ok', 'error', 'cancelled', 'interrupted'] as const
export type RunStatus = (typeof runStatuses)[number]
export type TerminalRunStatus = Exclude<RunStatus, 'queued' | 'running'>

export const isTerminal = (status: RunStatus): status is TerminalRunStatus =>
  status !== 'queued' && status !== 'running'

/** What to do with a run whose session is busy, because another run executes or waits there. */
export const whenBusy = ['reject', 'enqueue', 'interrupt'] as const

export const webhookUrl = Type.String({
  minLength: 1,
  maxLength: 2_048,
  // Excludes NUL, which PostgreSQL text cannot hold and which is not part of any URL.
  pattern: '^[^\\u0000-\\u0020]*$',
  description: 'A public https address. Signed messages are posted to it as Standard Webhooks describes.',
})

/** The address that is told when a run has ended. */
export const WebhookTarget = Type.Object({ url: webhookUrl }, { additionalProperties: false })
export type WebhookTarget = Static<typeof WebhookTarget>

/** One task for a profile: the body of `POST /api/runs`. The service checks ids, with the answers that the specification requires. */
export const SubTask = Type.Object(
  {
    id: Type.Optional(Type.String({ description: 'Client run id: 1-128 letters, digits, underscore, hyphen.' })),
    sessionId: Type.Optional(Type.String({ description: 'Reuse this session.' })),
    profile: Type.String(),
    prompt: Type.String({ minLength: 1, maxLength: 1_000_000 }),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    ...sentPromptFields,
    webhook: Type.Optional(WebhookTarget),
    whenBusy: Type.Optional(
      Type.Union(
        whenBusy.map((one) => Type.Literal(one)),
        {
          description:
            'When the session is busy: `reject` (default) answers 409 `session_busy`; `enqueue` starts the run once those before it have ended; `interrupt` cancels the running run and starts this one in its place, before all waiting ones.',
        },
      ),
    ),
  },
  { additionalProperties: false },
)
export type SubTask = Static<typeof SubTask>

/** The run that delegated a task, and the limits that it left for it. */
const ParentRun = Type.Object({
  runId: Type.String(),
  rootId: Type.Optional(Type.String({ description: 'The run at the root of these delegations.' })),
  depth: Type.Integer({ minimum: 1, description: 'How many delegations led to this run.' }),
  budgetCents: Type.Optional(Type.Number({ description: 'What the run may cost, if its parent has a limit.' })),
  awaits: Type.Optional(
    Type.Literal(true, { description: 'The parent is under way until this run ends; a workflow is not.' }),
  ),
})
export type ParentRun = Static<typeof ParentRun>

/** The public chat that a run answers. Its public run, message and conversation begin and end in the same statements as the run. */
export const ChatOf = Type.Object({
  publicRunId: Type.String(),
  conversationId: Type.String(),
  publishedId: Type.String(),
  /** True: the conversation exists, and the run continues in its session. */
  continued: Type.Boolean(),
  endUserId: Type.Optional(Type.String()),
  /** The key of the agent with which the chat was sent. */
  keyId: Type.Optional(Type.String()),
  /** The key and agent as the gateway remembers them. The run begins only if they have not changed since. */
  admission: Type.Optional(Type.Object({ keyId: Type.String(), revision: Type.String() })),
})
export type ChatOf = Static<typeof ChatOf>

/** A task as it is started. A client can set neither that it was delegated nor that it answers a chat. */
export type Task = Omit<SubTask, 'attachments'> &
  Pick<PromptFields, 'attachments'> & {
    readonly parent?: ParentRun
    /** Cents that the parent itself has spent, which its child cannot use of the parent's hold. */
    readonly parentSpentCents?: number
    readonly chat?: ChatOf
  }

/** A sequence number after every event: a reader that follows from here is told the ending and nothing else. */
export const endingOnly = 2 ** 30

/** The `202` of `POST /api/runs`. */
export const RunAccepted = Type.Object({
  runId: Type.String(),
  sessionId: Type.String(),
  status: Type.String({ description: '`running`, or `queued` when the run waits for its session.' }),
})
export type RunAccepted = Static<typeof RunAccepted>

export const RunSummary = Type.Object({
  runId: Type.String(),
  sessionId: Type.String(),
  status: Type.Union(runStatuses.map((status) => Type.Literal(status))),
  subTask: Type.Object({
    id: Type.String(),
    sessionId: Type.String(),
    profile: Type.String(),
    prompt: Type.String(),
    metadata: Type.Optional(Type.Unknown()),
    ...promptInfoFields,
  }),
  parent: Type.Optional(ParentRun),
  queuedAt: Type.Optional(
    Type.String({
      format: 'date-time',
      description: 'When the run began to wait for its session; absent when it never did.',
    }),
  ),
  startedAt: Type.String({
    format: 'date-time',
    description: 'When the run began to execute; for a run that never did, when it was accepted.',
  }),
  finishedAt: Type.Optional(Type.String({ format: 'date-time' })),
  attempt: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: 'How often the run was started: more than once after a crash with `onCrash: retry`.',
    }),
  ),
  error: Type.Optional(Type.Object({ code: Type.String(), message: Type.String() })),
  result: Type.Optional(Type.String()),
  usage: Type.Optional(Type.Omit(UsageEvent, ['type'])),
  costCents: Type.Optional(Type.Number()),
})
export type RunSummary = Static<typeof RunSummary>

/** Characters of a text in a list, and bytes of the metadata. */
export const previewChars = 1_000
export const previewMetadataBytes = 4_096

const { attachments: _attachments, responseFormat: _format, ...shownTask } = RunSummary.properties.subTask.properties
const { result: _result, subTask: _task, ...shown } = RunSummary.properties
const begins = `Its first ${previewChars} characters.`

/** A run in a list. Its texts may be megabytes, so it has only their beginnings; `GET /api/runs/{id}` has everything. */
export const RunPreview = Type.Object({
  ...shown,
  subTask: Type.Object(
    {
      ...shownTask,
      prompt: Type.String({ description: begins }),
      metadata: Type.Optional(
        Type.Unknown({ description: `Left out when it is more than ${previewMetadataBytes} bytes of JSON.` }),
      ),
    },
    { description: 'Without attachments and response format.' },
  ),
  result: Type.Optional(Type.String({ description: begins })),
  truncated: Type.Optional(
    Type.Array(Type.Union((['prompt', 'metadata', 'error', 'result'] as const).map((field) => Type.Literal(field))), {
      description: 'The fields that are cut here; absent if none is. `GET /api/runs/{id}` has them whole.',
    }),
  ),
})
export type RunPreview = Static<typeof RunPreview>

/** The fields of a run in a list. `metadataCut`: the metadata was too large to be read. */
export function previewOf({ subTask, error, result, ...run }: RunSummary, metadataCut = false): RunPreview {
  const { attachments: _, responseFormat: __, ...task } = subTask
  const truncated: NonNullable<RunPreview['truncated']> = metadataCut ? ['metadata'] : []
  const cut = (field: 'prompt' | 'error' | 'result', text: string): string => {
    const begin = beginOf(text, previewChars)
    if (begin.length < text.length && !truncated.includes(field)) truncated.push(field)
    return begin
  }
  return {
    ...run,
    subTask: { ...task, prompt: cut('prompt', task.prompt) },
    ...(error ? { error: { code: cut('error', error.code), message: cut('error', error.message) } } : {}),
    ...(result === undefined ? {} : { result: cut('result', result) }),
    ...(truncated.length > 0 ? { truncated } : {}),
  }
}

/** The first characters of a text, counted like PostgreSQL's `left`, which never cuts a character in two. */
export function beginOf(text: string, chars: number): string {
  if (text.length <= chars) return text
  let end = 0
  // Lists cut thousands of texts in a second, so the characters are counted in place and not copied one by one.
  for (let left = chars; left > 0 && end < text.length; left--) end += text.codePointAt(end)! > 0xffff ? 2 : 1
  return text.slice(0, end)
}

/**
 * Submits runs and follows them. It is the gateway's only view of the conductor: in process when both are in one kernel, otherwise over the signed
 * internal plane.
 */
export interface RunDispatch {
  /**
   * Starts a run and follows its events after `afterSeq` in the same round trip. The caller chooses `task.id`, so a call that is repeated after a
   * lost answer joins the existing run. Resolves once a runner has taken the run, or after waiting 2 s for one. Rejects with AppErrors:
   * `unknown_profile: <name>` 400, `session_busy` 409, `not_found` 404, 402 codes; for a chat `conversation_not_found` 404, `conversation_busy`,
   * `conversation_ended` and `admission_stale` 409. Nothing was begun when the status is below 500 or the error is `retryable`; after any other
   * error the run may exist.
   */
  start(tenantId: string, task: DispatchTask, afterSeq: number, signal: AbortSignal): Promise<StartedRun>
  /**
   * Replays a run's events after `afterSeq`, then follows them to the terminal event, which every reader gets. A reader that is past the end of the
   * log, because a killed conductor had shown more than it stored, gets the terminal event under its own number. Resumes by itself after an
   * interruption, and gives up with `upstream` 502. `not_found` 404 for an unknown run.
   */
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncIterable<LogChunk>
  /** Undefined for an unknown run. */
  find(tenantId: string, runId: string): Promise<RunSummary | undefined>
  /** Idempotent. A finished run keeps its status. */
  cancel(tenantId: string, runId: string): Promise<void>
  /** Rejects when dispatch is not possible now. The readiness check calls it. */
  ping(): Promise<void>
  /** Fields for the gateway's `chat-gateway.ready` line, e.g. `conductor_internal_url`. Absent when dispatch is in process. */
  readonly about?: Readonly<Record<string, unknown>>
}
export type DispatchTask = SubTask & { readonly id: string; readonly chat?: ChatOf }
export interface StartedRun extends RunAccepted {
  readonly events: AsyncIterable<LogChunk>
}
export const RunDispatch = capability<RunDispatch>('gateway.run-dispatch')
