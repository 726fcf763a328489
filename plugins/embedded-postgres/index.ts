import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { DatabaseServer } from '#contracts/database'
import { startPostgres } from '#kit/postgres'

export default definePlugin({
  name: 'embedded-postgres',
  config: Settings({
    data: Type.String({ minLength: 1, description: 'Directory of the database, kept between starts.' }),
    dsn: Type.Optional(Type.String({ description: 'A server to use instead of starting one.' })),
  }),
  provides: { server: DatabaseServer },
  async setup({ config, log, onStop }) {
    if (config.dsn !== undefined) return { server: { dsn: config.dsn } }
    const postgres = await startPostgres({ dataDir: config.data, log: (line) => log.debug(line) })
    onStop(() => postgres.stop())
    return { server: { dsn: postgres.dsn() } }
  },
})
