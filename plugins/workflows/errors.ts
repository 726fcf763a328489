import { type AppError, errorTable } from '#kernel'

/** A problem of a definition, and where it is: `nodes/2/dependsOn/0`. */
export interface Problem {
  readonly path: string
  readonly message: string
}

export const workflowErrors = errorTable('workflows', {
  invalidWorkflow: {
    status: 400,
    about: 'The definition cannot be run; `issues` names every problem, and where it is.',
  },
  invalidInput: { status: 400, about: 'The input does not match the `inputSchema` of the workflow.' },
  invalidSchedule: { status: 400, about: 'The schedule as written can never fire; `issues` says what is wrong.' },
  notPaused: {
    status: 409,
    message: 'Only a paused run can be repaired: it pauses when a node fails.',
  },
  runOver: { status: 409, message: 'The workflow run is over.' },
  outputGone: { status: 410, message: 'An output of the workflow run is no longer in the object store.' },
  nodeOver: { status: 409, about: 'The node has already ended, or its status does not allow the request.' },
})

export function invalidWorkflow(problems: readonly Problem[], at = ''): AppError {
  const issues = problems.map(({ path, message }) => ({ path: at === '' ? path : `${at}/${path}`, message }))
  const [first] = issues
  const others = issues.length - 1
  const more = others > 0 ? ` \`issues\` names ${others} more.` : ''
  return workflowErrors.invalidWorkflow({ message: `${first?.path}: ${first?.message}.${more}`, detail: { issues } })
}
