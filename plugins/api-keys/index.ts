import { definePlugin } from '#kernel'
import { ApiGuard, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { apiKeyRoutes } from './routes.ts'
import { createApiKeyService } from './service.ts'

export default definePlugin({
  name: 'api-keys',
  requires: { guard: ApiGuard, database: Database, tokens: Tokens },
  async setup({ deps, routes }) {
    const service = createApiKeyService(deps.database, deps.tokens)
    routes('conductor', async (app) => {
      deps.guard.protect(app)
      apiKeyRoutes(app, deps.guard, service)
    })
    return {}
  },
})
