import type { TerminalRunStatus } from './runs.ts'

/** One way in which the service ends a run: its status, its sentences, and whether the run may be retried. */
export interface EndingKind {
  readonly status: Exclude<TerminalRunStatus, 'ok'>
  /** The sentence for the tenant who started the run. */
  readonly message: string
  /** The sentence for the person who chats. By default it says that the agent could not answer. */
  readonly publicMessage?: string
  /** The process that executed the run was gone or absent. Nothing is wrong with the run, so another attempt may succeed. */
  readonly lost?: true
}

const again = 'The run was interrupted by a restart. Send the message again.'

/**
 * The endings that the service itself gives to runs, by code. A runtime's own codes (`model_error`, …) are not listed: they are errors with the
 * runtime's message.
 */
export const endings = {
  cancelled: { status: 'cancelled', message: 'The run was cancelled.', publicMessage: 'The run was cancelled.' },
  interrupted_by: { status: 'cancelled', message: 'The run was cancelled in favour of another run.' },
  session_shutdown: { status: 'cancelled', message: 'The session was shut down.' },
  interrupted: {
    status: 'interrupted',
    message: 'The server that executed this run stopped before the run ended.',
    publicMessage: again,
    lost: true,
  },
  timeout: {
    status: 'error',
    message: 'The run took longer than its profile allows.',
    publicMessage: 'The agent took too long to answer.',
  },
  log_full: {
    status: 'error',
    message: 'The runs of this tenant have reached the limit eventLogBytesPerDay for today.',
  },
  storage_full: {
    status: 'error',
    message: 'The stored data of this tenant has reached the limit storedBytes.',
  },
  budget_exceeded: { status: 'error', message: 'The run has used up its budget.' },
  unavailable: { status: 'error', message: 'The log of the run could not be written.' },
  runner_protocol: {
    status: 'error',
    message: 'The runner sent a line that is not an event, or an event out of order.',
  },
  bad_event: { status: 'error', message: 'The sidecar sent something that is not a run event.' },
  runner_lost: { status: 'error', message: 'The runner stopped before the run ended.', lost: true },
  runner_unreachable: { status: 'error', message: 'The runner cannot be reached.', lost: true },
  runner_failed: { status: 'error', message: 'The runner answered with an error.', lost: true },
  runner_draining: { status: 'error', message: 'The runner is about to stop and accepts nothing new.', lost: true },
  runner_stopping: { status: 'error', message: 'The runner is shutting down.', lost: true },
  no_runner: { status: 'error', message: 'No runner can execute the run.', lost: true },
  hydration_failed: { status: 'error', message: 'The session could not be restored.', lost: true },
  sidecar_lost: { status: 'error', message: 'The sidecar stopped before the run was over.', lost: true },
  sidecar_unreachable: { status: 'error', message: 'The sidecar cannot be reached.', lost: true },
  sidecar_draining: { status: 'error', message: 'The sidecar is about to stop and accepts nothing new.', lost: true },
} as const satisfies Readonly<Record<string, EndingKind>>
export type EndingCode = keyof typeof endings

const byCode: Readonly<Record<string, EndingKind>> = endings

/** True when another attempt may succeed. An error that a runtime itself reported is an answer, and is final. */
export const isLost = (code: string): boolean => byCode[code]?.lost === true

/** The sentence for the person who chats. Other error texts may name providers, addresses or sessions, and are not shown. */
export const publicMessageOf = (code: string): string => byCode[code]?.publicMessage ?? 'The agent could not answer.'
