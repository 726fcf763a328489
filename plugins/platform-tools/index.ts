import { Type } from '@sinclair/typebox'
import { CommaList, definePlugin, Duration, Settings } from '#kernel'
import { PlatformTools } from '#contracts/tools'
import { createCalculate } from './calculate.ts'
import { currentTime } from './current-time.ts'
import { bundledDocs } from './docs.ts'
import { createHttpFetch } from './http-fetch.ts'
import { createSearchDocs } from './search-docs.ts'

/** The first tools of the platform. A session has those that its profile lists. */
export default definePlugin({
  name: 'platform-tools',
  config: Settings({
    docs: Type.Optional(Type.String({ description: 'Folder with README.md and docs/; the one shipped unless given.' })),
    httpFetchTimeout: Duration('10s'),
    httpFetchHosts: CommaList(
      'Hosts that `http_fetch` may read, `.example.com` with its subdomains; any public one unless given.',
    ),
  }),
  provides: { tools: PlatformTools },
  async setup(ctx) {
    const { config } = ctx
    const httpFetch = createHttpFetch({ timeoutMs: config.httpFetchTimeout, allowHosts: config.httpFetchHosts })
    ctx.onStop(() => httpFetch.close())
    return {
      tools: {
        calculate: createCalculate(),
        current_time: currentTime,
        search_docs: createSearchDocs(config.docs ?? bundledDocs),
        http_fetch: httpFetch.tool,
      },
    }
  },
})
