import type { ModelFetch } from '#contracts/model'
import { workerPaths } from '#contracts/wire/worker'
import type { ModelEgress } from '#contracts/model'
import type { WorkerIdentity } from '#contracts/workers'

export function createEgress(identity: WorkerIdentity, fetch: ModelFetch): ModelEgress {
  const root = (): string => identity.runnerUrl + workerPaths(identity.sessionId).models('')
  // Model providers keep the address that they were set up with, also when a warm worker has got its session since.
  const first = root()
  const present = (url: string): string => (url.startsWith(first) ? root() + url.slice(first.length) : url)
  return {
    baseUrl: (provider) => root() + encodeURIComponent(provider),
    token: () => identity.token,
    fetch(input, init) {
      const headers = new Headers(init?.headers)
      headers.set('authorization', `Bearer ${identity.token}`)
      const url = present(input instanceof Request ? input.url : String(input))
      return fetch(url, { ...init, headers: Object.fromEntries(headers) })
    },
  }
}
