import { errorTable } from '#kernel'

/** In a sandbox: what its worker is told by the runner, and the model by the tools. */
export const workerErrors = errorTable('worker', {
  /** Nobody answered, or not now: the same request may be sent again. */
  runnerUnreachable: { status: 503, retry: true, message: 'The runner cannot be reached.' },
  /** The runner answered, and will answer the same again. */
  runnerRefused: { status: 502, about: 'The runner refuses what the worker sent; the sentence quotes its reason.' },
  /** The runner does not want this worker any more, or speaks another protocol: it must end. */
  workerRefused: { status: 401, about: 'The runner no longer accepts this worker, which therefore ends.' },
  stateTooLarge: { status: 413, message: "The session's state is larger than 64 MiB." },
  outsideWorkspace: { status: 403, about: 'A path of a tool call is not inside the workspace.' },
  /** The runner, or the VirtualFS behind it, takes no such file. */
  fileRefused: { status: 400, about: 'A file of the sandbox cannot be stored; the sentence says why.' },
  toolRefused: { status: 400, about: 'The tool refused the call; the sentence says why.' },
})
