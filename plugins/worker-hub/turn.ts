import { type AppError, linesOf } from '#kernel'
import { parseLine, peekType } from '#contracts/run-event'
import { sessionBusy, stateMissing, unknownRun } from './errors.ts'
import type { Upload } from './upload.ts'

/** One run that waits for its events, or reads them. */
export interface Turn {
  readonly runId: string
  /** Takes the upload of the run. AppError 404 `unknown_run` when it is over or has one. */
  take(upload: Upload): void
  /** Ends it: whoever reads gets `thrown`, the worker `answer`. */
  end(thrown: Error, answer?: AppError): void
  events(): AsyncGenerator<Buffer>
}

/** `resume`: the run goes on with a conversation that the worker should have. */
export function createTurn(runId: string, resume: boolean): Turn {
  const arrival = Promise.withResolvers<Upload>()
  arrival.promise.catch(() => {})
  let upload: Upload | undefined
  let over = false
  const end = (thrown: Error, answer: AppError = unknownRun()): void => {
    if (over) return
    over = true
    arrival.reject(thrown)
    upload?.end(answer, thrown)
  }
  return {
    runId,
    take(arrived) {
      if (over || upload) throw unknownRun()
      upload = arrived
      arrival.resolve(arrived)
    },
    end,
    async *events() {
      try {
        let first = true
        for await (const chunk of (await arrival.promise).lines()) {
          const refusal = first ? refusalOf(chunk, resume) : undefined
          if (refusal) throw refusal
          first = false
          yield chunk
        }
        over = true
      } finally {
        end(unknownRun())
      }
    },
  }
}

/** A worker cannot refuse a run by a status: its refusal is the only event of the run. */
function refusalOf(chunk: Buffer, resume: boolean): AppError | undefined {
  const [line] = linesOf(chunk)
  if (!line || peekType(line) !== 'error') return undefined
  const code = parseLine(line)?.['code']
  if (code === 'session_busy') return sessionBusy()
  return code === 'session_state_missing' && resume ? stateMissing() : undefined
}
