import type { PlatformTool } from '#contracts/tools'
import { createCalculate } from './builtin/calculate.ts'
import { currentTime } from './builtin/current-time.ts'
import { createHttpFetch } from './builtin/http-fetch.ts'
import { createSearchDocs } from './builtin/search-docs.ts'

export interface BuiltinToolSettings {
  /** A folder with README.md and docs/; the one shipped unless given. */
  readonly docs?: string | undefined
  readonly httpFetchTimeout: number
  /** Empty: any public host. */
  readonly httpFetchHosts: readonly string[]
}

/** The tools that every runner has, by name. */
export function createBuiltinTools({ docs, httpFetchTimeout, httpFetchHosts }: BuiltinToolSettings) {
  const httpFetch = createHttpFetch({ timeoutMs: httpFetchTimeout, allowHosts: httpFetchHosts })
  const all = [createCalculate(), currentTime, createSearchDocs(docs), httpFetch.tool]
  const tools: Readonly<Record<string, PlatformTool>> = Object.fromEntries(all.map((tool) => [tool.name, tool]))
  return { tools, close: httpFetch.close }
}
