import { definePlugin } from 'agent-orc/kernel'
import { ApiGuard } from 'agent-orc/contracts/auth'
import { Database } from 'agent-orc/contracts/database'
import { errors } from './errors.ts'
import { noteRoutes } from './routes.ts'
import { createStore } from './store.ts'

/** Notes that a tenant keeps: a table of its own, and routes at the conductor. */
export default definePlugin({
  name: 'notes',
  errors,
  migrations: new URL('./migrations/', import.meta.url),
  requires: { guard: ApiGuard, database: Database },
  async setup({ deps, routes }) {
    const { guard, database } = deps
    routes('conductor', async (app) => {
      guard.protect(app)
      noteRoutes(app, guard, createStore(database))
    })
    return {}
  },
})
