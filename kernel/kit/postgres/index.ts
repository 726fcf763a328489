// A small library of its own: a real PostgreSQL from npm, for development and tests.
export { type PostgresOptions, type PostgresServer, startPostgres } from './server.ts'
