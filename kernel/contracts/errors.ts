export interface AppErrorOptions {
  /** A sentence for people; never the text of an unknown exception. */
  readonly message?: string
  /** Fields merged into the error body, e.g. `checkout_path`. */
  readonly detail?: Readonly<Record<string, unknown>>
  readonly headers?: Readonly<Record<string, string>>
  /** The same request may succeed later. By default the error's row decides; it is never guessed from text. */
  readonly retryable?: boolean
  readonly cause?: unknown
}

/** An error that callers of the service see. `code` is the string on the wire. Compare `code`; do not use `instanceof`. */
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

/** One error, as its subsystem declares it. */
export type ErrorKind = {
  /** The string on the wire; the key in snake case by default. */
  readonly code?: string
  /** Set when a name follows the code on the wire, as the specification shows: `unknown_profile: NAME`. */
  readonly named?: true
  readonly status: number
  /**
   * Whether a retry helps. `true`: the same request may succeed later, and the answer says so. `'as-said'`: the answer's `retryable` tells.
   * `'later'`: only after something has changed, for which no client can wait by itself. Absent: a retry never helps.
   */
  readonly retry?: true | 'later' | 'as-said'
} & (
  | {
      /** The default sentence for people. A throw may replace it. */
      readonly message: string
      /** The sentence of the documentation, if it should say more than the message. */
      readonly about?: string
    }
  | { readonly about: string; readonly message?: never }
)

/** One error, as code, OpenAPI and the documentation use it. */
export interface ErrorRow {
  readonly subsystem: string
  readonly code: string
  readonly named: boolean
  readonly status: number
  /** The default sentence. A throw may replace it. */
  readonly message: string | undefined
  /** For the documentation. */
  readonly about: string
  /** Whether a retry helps. */
  readonly retryable: boolean | 'later' | 'as-said'
}

/** An error with its row: all that schemas and documents need. */
export interface Listed {
  readonly row: ErrorRow
}

interface NamedOptions extends AppErrorOptions {
  /** The name that follows the code. */
  readonly name: string
}
type OptionsOf<K> = K extends { readonly named: true } ? [options: NamedOptions] : [options?: AppErrorOptions]

/** Makes the error of a row: `throw runErrors.queueFull()`. */
export interface ErrorFactory<K = ErrorKind> extends Listed {
  (...options: OptionsOf<K>): AppError
}

/** The errors of one subsystem. */
export type ErrorTable = Readonly<Record<string, Listed>>

/**
 * The errors of a subsystem, each once: `errorTable('runs', { queueFull: { status: 429, message: 'As many …' } })`. Throws,
 * OpenAPI and docs/errors.md read the same rows; the plugin that answers them registers the table as its `errors`. ADR 41.
 */
export function errorTable<const T extends Readonly<Record<string, ErrorKind>>>(
  subsystem: string,
  kinds: T,
): { readonly [K in keyof T]: ErrorFactory<T[K]> } {
  const factories = Object.entries(kinds).map(([key, kind]) => [key, factoryOf(rowOf(subsystem, key, kind))])
  return Object.freeze(Object.fromEntries(factories)) as { readonly [K in keyof T]: ErrorFactory<T[K]> }
}

const rowOf = (subsystem: string, key: string, kind: ErrorKind): ErrorRow => ({
  subsystem,
  code: kind.code ?? key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
  named: kind.named ?? false,
  status: kind.status,
  message: kind.message,
  about: kind.about ?? kind.message ?? '',
  retryable: kind.retry ?? false,
})

function factoryOf(row: ErrorRow): Listed {
  const make = (options: Partial<NamedOptions> = {}): AppError => {
    const { name, ...said } = options
    const code = row.named ? `${row.code}: ${name}` : row.code
    const message = said.message ?? row.message
    const retryable = said.retryable ?? row.retryable === true
    return new AppError(code, row.status, { ...said, retryable, ...(message === undefined ? {} : { message }) })
  }
  return Object.freeze(Object.assign(make, { row }))
}

/** The error for a failure before anything began. It keeps the sentence, and whatever the status was, the caller may retry. */
export const unbegun = (cause: AppError): AppError =>
  new AppError(cause.code, 503, { message: cause.message, retryable: true, cause })

export const isAppError = (error: unknown): error is AppError =>
  error instanceof Error && error.name === 'AppError' && 'status' in error && 'code' in error
