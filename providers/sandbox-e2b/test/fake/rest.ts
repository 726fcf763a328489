import type { Static, TSchema } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { ApiAnswer, ApiRequest } from '#testing'
import { ConnectSandbox, NewSandbox, SandboxPauseRequest, SandboxTimeoutRequest } from './documented.ts'
import type { FakeSandbox, Sandboxes } from './sandboxes.ts'
import { type FakeE2bOptions, parse } from './options.ts'

/** The longest life of a sandbox in one go, in seconds. */
const maxTimeout = 24 * 3_600
const maxPage = 100

const refuse = (code: number, message: string): ApiAnswer => ({ status: code, body: { code, message } })

/** E2B's REST API. */
export function createRestApi(sandboxes: Sandboxes, options: FakeE2bOptions) {
  const { apiKey, templates, listLag } = options
  const listsLeft = new Map<string, number>()
  const missing = (id: string): ApiAnswer => refuse(404, `Sandbox "${id}" doesn't exist or you don't have access to it`)
  const startedOf = ({ sandboxID, templateID, accessToken }: FakeSandbox) => ({
    sandboxID,
    templateID,
    clientID: '6532622b',
    envdVersion: '0.4.4',
    ...(accessToken === undefined ? {} : { envdAccessToken: accessToken }),
    domain: null,
  })
  const listedOf = ({ sandboxID, templateID, metadata, state, startedAt, endAt }: FakeSandbox) => ({
    sandboxID,
    templateID,
    clientID: '6532622b',
    envdVersion: '0.4.4',
    metadata,
    state,
    startedAt: new Date(startedAt).toISOString(),
    endAt: new Date(endAt).toISOString(),
    ...templates[templateID],
  })
  const withBody = async <T extends TSchema>(
    schema: T,
    body: unknown,
    serve: (body: Static<T>) => Promise<ApiAnswer> | ApiAnswer,
  ): Promise<ApiAnswer> =>
    Value.Check(schema, body) ? serve(body) : refuse(400, 'Error when parsing request: it is not as documented')

  const list = (query: URLSearchParams): ApiAnswer => {
    const states = query.get('state')?.split(',') ?? ['running', 'paused']
    const wanted = query.has('metadata') ? filtersOf(query.get('metadata')!) : []
    const limit = Math.min(Number(query.get('limit') ?? maxPage), maxPage)
    const from = Number(query.get('nextToken') ?? 0)
    const visible = [...sandboxes.all.values()].filter(({ sandboxID }) => {
      const left = listsLeft.get(sandboxID) ?? 0
      listsLeft.set(sandboxID, left - 1)
      return left <= 0
    })
    const found = visible.filter(
      ({ state, metadata }) => states.includes(state) && wanted.every(([name, value]) => metadata[name] === value),
    )
    const next = from + limit < found.length ? { 'x-next-token': String(from + limit) } : {}
    return { status: 200, headers: next, body: found.slice(from, from + limit).map(listedOf) }
  }

  return async ({ method, url: target, headers, body: bytes }: ApiRequest): Promise<ApiAnswer> => {
    if (headers['x-api-key'] !== apiKey) return refuse(401, 'Invalid API key')
    const url = new URL(target, 'http://e2b')
    const body = parse(bytes)
    const name = `${method} ${url.pathname}`
    if (name === 'GET /v2/sandboxes') return list(url.searchParams)
    if (name === 'POST /sandboxes') {
      return withBody(NewSandbox, body, async (wanted) => {
        if (!(wanted.templateID in templates)) return refuse(404, `template '${wanted.templateID}' not found`)
        if ((wanted.timeout ?? 15) > maxTimeout) return refuse(400, 'Timeout cannot be greater than 24 hours')
        const sandbox = await sandboxes.create(wanted)
        listsLeft.set(sandbox.sandboxID, listLag)
        return { status: 201, body: startedOf(sandbox) }
      })
    }
    const [, id = '', action = ''] = /^\/sandboxes\/([^/]+)(?:\/(\w+))?$/.exec(url.pathname) ?? []
    if (id === '') return refuse(404, 'Not found')
    const sandbox = sandboxes.all.get(decodeURIComponent(id))
    if (!sandbox) return missing(id)
    switch (`${method} ${action}`) {
      case 'GET ':
        return { status: 200, body: listedOf(sandbox) }
      case 'DELETE ':
        await sandboxes.kill(sandbox)
        return { status: 204 }
      case 'POST pause':
        return withBody(SandboxPauseRequest, body ?? {}, async ({ memory = true }) => {
          if (sandbox.state === 'paused')
            return refuse(409, `Error pausing sandbox - sandbox '${id}' is already paused`)
          await sandboxes.pause(sandbox, memory)
          return { status: 204 }
        })
      case 'POST connect':
        return withBody(ConnectSandbox, body, async ({ timeout }) => {
          if (timeout > maxTimeout) return refuse(400, 'Timeout cannot be greater than 24 hours')
          const woken = sandbox.state === 'paused'
          if (woken) await sandboxes.resume(sandbox)
          if (woken || sandbox.endAt < Date.now() + timeout * 1_000) sandboxes.endIn(sandbox, timeout)
          return { status: woken ? 201 : 200, body: startedOf(sandbox) }
        })
      case 'POST timeout':
        return withBody(SandboxTimeoutRequest, body, ({ timeout }) => {
          if (sandbox.state !== 'running') return missing(id)
          sandboxes.endIn(sandbox, timeout)
          return { status: 204 }
        })
      default:
        return refuse(404, 'Not found')
    }
  }
}

/** As E2B reads the filter: unescaped as a whole, split, and each part unescaped once more. */
const filtersOf = (filter: string): [string, string][] =>
  decodeURIComponent(filter)
    .split('&')
    .map((pair) => pair.split('=').map((part) => decodeURIComponent(part)) as [string, string])
