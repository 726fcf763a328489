import type { RunSummary } from '#contracts/runs'

/** A result beyond this is cut: receivers read the whole of it from the run. */
const maxResultLength = 64 * 1024

/** The body of a message. The same run gives the same bytes, however often it is sent. */
export function messageBody(run: RunSummary): string {
  const { result, subTask, ...rest } = run
  const { prompt: _, ...task } = subTask
  return JSON.stringify({
    type: 'run.finished',
    timestamp: run.finishedAt,
    data: {
      ...rest,
      subTask: task,
      ...(result === undefined ? {} : { result: result.slice(0, maxResultLength) }),
      ...(result !== undefined && result.length > maxResultLength ? { resultTruncated: true } : {}),
    },
  })
}
