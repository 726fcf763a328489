import pg from 'pg'

/** The server's address in parts, as platforms hand it out: `POSTGRES_USER`, `PGHOST` and so on. Specification 1.1. */
export interface AddressParts {
  readonly host?: string
  readonly port?: number
  readonly user?: string
  readonly password?: string
  readonly database?: string
}

/** A DSN made of parts, or undefined when neither host nor user is given. `host` may be a directory of UNIX sockets. */
export function dsnOf({ host, port, user, password, database }: AddressParts): string | undefined {
  if (host === undefined && user === undefined) return undefined
  const socket = host?.startsWith('/') ?? false
  const login =
    user === undefined
      ? ''
      : encodeURIComponent(user) + (password === undefined ? '' : `:${encodeURIComponent(password)}`)
  const at = login === '' ? '' : `${login}@`
  const name = encodeURIComponent(database ?? user ?? 'postgres')
  if (socket) return `postgres://${at}/${name}?host=${encodeURIComponent(host!)}&port=${port ?? 5432}`
  const address = host?.includes(':') ? `[${host}]` : (host ?? '127.0.0.1')
  return `postgres://${at}${address}:${port ?? 5432}/${name}`
}

/** Why a DSN names no server at all, in a sentence without the DSN: it may hold a password. */
export function dsnProblem(dsn: string): string | undefined {
  // pg takes anything else for the name of a database on this machine, which would be looked for in vain for ever.
  if (dsn.startsWith('/')) return undefined
  if (!/^(postgres|postgresql|socket):/.test(dsn)) return 'POSTGRES_DSN must begin with postgres:// or postgresql://'
  try {
    void new pg.Client({ connectionString: dsn })
    return undefined
  } catch {
    return 'POSTGRES_DSN is not a valid address; write postgres://user:password@host:5432/database and percent-encode special characters'
  }
}
