import { definePlugin } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { RunStore } from '#contracts/run-store'
import { RunDispatch } from '#contracts/runs'
import { sessionStreamRoutes } from './stream.ts'

/** One stream over all runs of a session, for whoever shows a conversation and not a run. */
export default definePlugin({
  name: 'session-stream',
  requires: { guard: ApiGuard, store: RunStore, dispatch: RunDispatch, kv: Kv },
  async setup({ deps, routes }) {
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      sessionStreamRoutes(app, deps.guard, deps)
    })
    return {}
  },
})
