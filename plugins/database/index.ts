import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, maybe, Settings } from '#kernel'
import { Database, databaseErrors, DatabaseServer, type HeartbeatOptions, type Work } from '#contracts/database'
import { ReadinessChecks } from '#contracts/health'
import { createReadinessCheck, dsnOf, dsnProblem, openDatabase, prepare } from './server.ts'
import { openHeartbeat } from './heartbeat.ts'
import { NotificationListener } from './listener.ts'
import { readPluginMigrations } from './migrations.ts'
import { divide, openConnections, openPool, Shares } from './pool.ts'
import { createTransactions } from './transactions.ts'
import { lanes } from './units.ts'

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
      description: 'Migrate the schema, including the tables of plugins; false waits until another process has.',
    }),
    required: Type.Boolean({
      default: false,
      description: 'Refuse to boot without the database. Otherwise requests are answered 503 until it is available.',
    }),
    poolSize: Type.Integer({
      minimum: 1,
      maximum: 1_000,
      default: 10,
      description:
        'Connections of this process. Two carry the starts, appends and ends of runs; the rest is divided as below. With fewer than 5 the kinds of work share them.',
    }),
    requestsPercent: Type.Integer({
      minimum: 10,
      maximum: 45,
      default: 40,
      description: 'Share of that rest for requests, half of it for one tenant.',
    }),
    readsPercent: Type.Integer({
      minimum: 10,
      maximum: 45,
      default: 40,
      description:
        'Share of that rest for lists, logs and figures, half of it for one tenant. What remains is for the other steps of runs.',
    }),
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
    const onBroken = (error: Error): void => log.warn({ err: error }, 'an idle connection broke')
    const pool = await openPool(dsn, config.poolSize, {
      onError: onBroken,
      gate,
      listener: innermost,
    })
    onStop(() => pool.close())
    const listener = new NotificationListener(dsn, log)
    onStop(() => listener.close())
    const { poolSize: size, requestsPercent, readsPercent } = config
    const shares = new Shares(divide({ size, lanes, requestsPercent, readsPercent }))
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
    new Gauge({
      name: 'agent_orc_database_waiting',
      help: 'Callers that wait for a free connection, by kind of work.',
      labelNames: ['work'],
      registers: [metrics],
      collect() {
        for (const [work, count] of Object.entries(shares.waiting())) this.set({ work }, count)
      },
    })
    const { unit, of } = createTransactions(pool, shares)
    const as = (work: Work): Database => views[work]
    const same = {
      unit,
      as,
      listen: listener.listen,
      connections: (size: number) => openConnections(dsn, size, gate, onBroken),
      heartbeat: (about: HeartbeatOptions) => openHeartbeat(dsn, about),
    }
    const views: Readonly<Record<Work, Database>> = {
      claims: { ...of('claims'), ...same },
      requests: { ...of('requests'), ...same },
      reads: { ...of('reads'), ...same },
      figures: { ...of('figures'), ...same },
    }
    const database = views.requests
    return { database, readiness: { database: createReadinessCheck(database) } }
  },
})
