import { errorTable } from '#kernel'

/** Errors of a worker in a sandbox: answers of the runner to the worker, and errors of tools for the model. */
export const workerErrors = errorTable('worker', {
  /** The runner did not answer, or cannot answer now. The same request may be retried. */
  runnerUnreachable: { status: 503, retry: true, message: 'The runner cannot be reached.' },
  /** The runner refused the request, and would refuse it again. */
  runnerRefused: { status: 502, about: 'The runner refuses what the worker sent; the sentence quotes its reason.' },
  /** The runner no longer accepts this worker, or speaks another protocol version. The worker must end. */
  workerRefused: { status: 401, about: 'The runner no longer accepts this worker, which therefore ends.' },
  stateTooLarge: { status: 413, message: "The session's state is larger than 64 MiB." },
  outsideWorkspace: { status: 403, about: 'A path of a tool call is not inside the workspace.' },
  /** The runner, or the VirtualFS behind it, refuses this file. */
  fileRefused: { status: 400, about: 'A file of the sandbox cannot be stored; the sentence says why.' },
  toolRefused: { status: 400, about: 'The tool refused the call; the sentence says why.' },
})
