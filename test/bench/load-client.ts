import type { ChildProcess } from 'node:child_process'
import type { ClientMessage, Job, JobResult } from './job.ts'

/** Runs one job at a time in the load client's process. `opened` is called when every stream has shown its first delta. */
export type RunJob = (job: Job, opened?: () => void) => Promise<JobResult>

/** A job that takes longer than it was to last by this much has hung. */
const graceMs = 180_000

export function createLoad(child: ChildProcess): RunJob {
  return (job, opened) => {
    const { promise, resolve, reject } = Promise.withResolvers<JobResult>()
    const late = setTimeout(() => reject(new Error('the load client hangs')), (job.durationMs ?? 0) + graceMs)
    const gone = (): void => reject(new Error('the load client ended'))
    const hear = (message: ClientMessage): void => {
      if (message.kind === 'opened') opened?.()
      else if (message.kind === 'result') resolve(message.result)
      else reject(new Error(message.message))
    }
    child.on('message', hear)
    child.once('exit', gone)
    child.send(job)
    return promise.finally(() => {
      clearTimeout(late)
      child.off('message', hear)
      child.off('exit', gone)
    })
  }
}
