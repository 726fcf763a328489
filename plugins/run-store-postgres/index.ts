import { definePlugin, Duration, maybe, Settings } from '#kernel'
import { Database } from '#contracts/database'
import { Prices } from '#contracts/prices'
import { RunJournal } from '#contracts/run-journal'
import { RunStore } from '#contracts/run-store'
import { createPostgresRunStore } from './store.ts'

/** Sessions, runs and event logs in PostgreSQL; this process's claims live as long as its row in `instances`. */
export default definePlugin({
  name: 'run-store-postgres',
  config: Settings({
    // Three missed heartbeats are a dead process; with a look every 2 s all its runs are over within 15 s of its death.
    heartbeat: Duration('4s', 'How often this process renews its lease.'),
    lease: Duration(
      '12s',
      'A process that has not renewed for this long is dead: its runs are interrupted, or tried again.',
    ),
    sweep: Duration('2s', 'How often this process looks for dead ones.'),
  }),
  requires: { database: Database, prices: maybe(Prices), journal: maybe(RunJournal) },
  provides: { store: RunStore },
  async setup(ctx) {
    const { heartbeat, lease, sweep } = ctx.config
    const store = createPostgresRunStore(ctx.deps.database, {
      heartbeatMs: heartbeat,
      leaseMs: lease,
      sweepMs: sweep,
      prices: ctx.deps.prices,
      log: ctx.log,
    })
    ctx.onStart(() => store.open())
    ctx.onStop(() => store.close())
    return { store: ctx.deps.journal?.mirror(store) ?? store }
  },
})
