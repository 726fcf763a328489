export interface AppErrorOptions {
  /** A sentence for people; never the text of an unknown exception. */
  readonly message?: string
  /** Fields merged into the error body, e.g. `checkout_path`. */
  readonly detail?: Readonly<Record<string, unknown>>
  readonly headers?: Readonly<Record<string, string>>
  /** The same request may succeed later; said where the error is thrown, never guessed from text. */
  readonly retryable?: boolean
  readonly cause?: unknown
}

/** An error that a caller of the service sees. `code` is the string on the wire. Match by `code`, not `instanceof`. */
export class AppError extends Error {
  readonly code: string
  readonly status: number
  readonly detail: Readonly<Record<string, unknown>>
  readonly headers: Readonly<Record<string, string>>
  readonly retryable: boolean
  readonly sentence: string | undefined
  constructor(code: string, status: number, options: AppErrorOptions = {}) {
    super(options.message ?? code, { cause: options.cause })
    this.name = 'AppError'
    this.code = code
    this.status = status
    this.detail = options.detail ?? {}
    this.headers = options.headers ?? {}
    this.retryable = options.retryable ?? false
    this.sentence = options.message
  }
}

/** A row of a plugin's error table: `const notPublished = appError('not_published', 404, 'Publish the profile first.')`. */
export const appError =
  (code: string, status: number, message?: string) =>
  (options: AppErrorOptions = {}): AppError =>
    new AppError(code, status, { ...(message === undefined ? {} : { message }), ...options })

export const notFound = appError('not_found', 404, 'There is nothing of this name or id.')
export const forbidden = appError('forbidden', 403, 'Your role does not allow this.')
export const unauthorized = appError('unauthorized', 401, 'The request carries no valid credentials.')
export const conflict = appError('conflict', 409)
export const unavailable = appError('unavailable', 503)

export const isAppError = (error: unknown): error is AppError =>
  error instanceof Error && error.name === 'AppError' && 'status' in error && 'code' in error
