import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, maybe, Settings } from '#kernel'
import { Database, databaseErrors, DatabaseServer } from '#contracts/database'
import { ReadinessChecks } from '#contracts/health'
import { createReadinessCheck, dsnOf, dsnProblem, openDatabase, prepare } from './server.ts'
import { NotificationListener } from './listener.ts'
import { readPluginMigrations } from './migrations.ts'
import { openPool } from './pool.ts'
import { createTransactions } from './transactions.ts'

export default definePlugin({
  name: 'database',
  config: Settings({
    dsn: Type.Optional(Type.String({ description: 'Address of the PostgreSQL server; the embedded one when absent.' })),
    host: Type.Optional(Type.String({ description: 'With user, password and database: the address in parts.' })),
    port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
    user: Type.Optional(Type.String()),
    password: Type.Optional(Type.String()),
    database: Type.Optional(Type.String()),
    migrate: Type.Boolean({
      default: true,
      description: 'Bring the schema up to date, the tables of plugins included; false waits until somebody has.',
    }),
    required: Type.Boolean({
      default: false,
      description: 'Refuse to boot without the database. Otherwise requests are answered 503 until it is there.',
    }),
    poolSize: Type.Integer({ minimum: 1, maximum: 1_000, default: 10 }),
  }),
  errors: databaseErrors,
  requires: { server: maybe(DatabaseServer) },
  provides: { database: Database, readiness: ReadinessChecks },
  async setup({ config, deps, log, metrics, plugins, innermost, stopping, fail, onStop }) {
    const dsn = config.dsn ?? dsnOf(config) ?? deps.server?.dsn
    if (dsn === undefined)
      throw new Error(
        'no PostgreSQL server: set POSTGRES_DSN, or POSTGRES_HOST and POSTGRES_USER, or add the plugin embedded-postgres',
      )
    const problem = dsnProblem(dsn)
    if (problem !== undefined) throw new Error(problem)
    const ofPlugins = await readPluginMigrations(plugins)
    const gate = await openDatabase({
      prepare: () => prepare(dsn, config.migrate, ofPlugins),
      required: config.required,
      log,
      stopping,
      onRefused: fail,
    })
    const pool = await openPool(dsn, config.poolSize, {
      onError: (error) => log.warn({ err: error }, 'an idle connection broke'),
      gate,
      listener: innermost,
    })
    onStop(() => pool.close())
    const listener = new NotificationListener(dsn, log)
    onStop(() => listener.close())
    new Gauge({
      name: 'agent_orc_database_connections',
      help: 'Pool connections in use, and callers waiting for one.',
      labelNames: ['state'],
      registers: [metrics],
      collect() {
        const { inUse, waiting } = pool.counts()
        this.set({ state: 'in_use' }, inUse)
        this.set({ state: 'waiting' }, waiting)
      },
    })
    const database: Database = { ...createTransactions(pool), listen: listener.listen }
    return { database, readiness: { database: createReadinessCheck(database) } }
  },
})
