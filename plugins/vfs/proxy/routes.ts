import { Readable } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, notFound } from '#kernel'
import { limitErrors } from '#contracts/limits'
import { mostEntriesAtOnce, vfsErrors } from '#contracts/vfs'

type Paced = (request: FastifyRequest, body: AsyncIterable<Uint8Array>) => AsyncIterable<Uint8Array>
type PassOn = (request: FastifyRequest, reply: FastifyReply, target: string) => Promise<FastifyReply>

const about =
  'Passes the request to [the VirtualFS server](vfs.json), under the path without `/api`, for the tenant of the key. `X-VFS-Session` selects the view of a session.'

const methods = {
  GET: { who: 'member', summary: 'Read from the VirtualFS' },
  PUT: { who: 'admin', summary: 'Write to the VirtualFS' },
  DELETE: { who: 'admin', summary: 'Delete from the VirtualFS' },
} as const

/** Forwards everything below `/api/vfs/` that has no route here. `paced` limits the rate of a tenant's bytes. */
export function proxyRoutes(app: App, paced: Paced, passOn: PassOn): void {
  // Bodies go on as they come. An upstream that answers before it has all of one has it destroyed, and with it would go the connection of
  // the client, who is to hear the answer.
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', async (request: FastifyRequest, body: Readable) =>
    Readable.from(paced(request, body.iterator({ destroyOnReturn: false })), { objectMode: false }),
  )
  for (const [method, { who, summary }] of Object.entries(methods)) {
    app.route({
      method: method as keyof typeof methods,
      url: '/api/vfs/*',
      ...access(who, method === 'GET' ? {} : { upload: true }),
      schema: {
        tags: ['vfs'],
        summary,
        description: about,
        params: Type.Object({
          '*': Type.String({ description: 'Path on the VirtualFS server, e.g. `mounts` or `files/{mount}/{path}`.' }),
        }),
        response: {
          '2xx': { description: 'The answer of the VirtualFS server, as it is.' },
          ...failures(notFound, vfsErrors.invalidPath, limitErrors.limitReached, vfsErrors.vfsUpstreamUnavailable),
        },
      },
      // Paths are checked as they were sent, and bodies are not read here.
      validatorCompiler: () => () => true,
      async handler(request, reply) {
        const target = targetOf(request.raw.url ?? '')
        if (target === undefined) throw vfsErrors.invalidPath()
        if (isOurs(target) || opensSession(method, target)) throw notFound()
        return passOn(request, reply, target)
      },
    })
  }
}

/** Routes that the proxy does not forward: only runners open leases, and only retention erases. */
const ours = /^\/vfs\/(leases|tenant)(\/|$)/
const publicPrefix = '/api'
/** How deep percent-encodings may be nested; deeper paths are refused. */
const deepest = 4

/**
 * The target of a request to `/api/vfs/…` on the VirtualFS server: path and query, as they were written, without `/api`. Undefined for a
 * path that some server between here and the files could read as another one.
 */
export function targetOf(url: string): string | undefined {
  const [, path = '', query = ''] = /^([^?#]*)(\?[^#]*)?$/.exec(url) ?? []
  if (!path.startsWith(`${publicPrefix}/vfs/`) || !/^[\x21-\x7e]*$/.test(url)) return undefined
  const rest = path.slice(publicPrefix.length)
  const segments = rest.split('/').slice(1)
  // The path of a folder ends with a slash.
  const plain = segments.every((one, i) => (one === '' ? i === segments.length - 1 : isPlain(one)))
  return plain ? rest + query : undefined
}

/** True for routes that only this server answers. */
const isOurs = (target: string): boolean => ours.test(decodeURIComponent(target.split('?')[0]!))

/** Cost in requests beyond the first one: a search reads up to 64 MiB, a list looks at each file that it shows. */
const turnsOfSearch = 60
const entriesOfTurn = 100
export function turnsOf(target: string): number {
  const [path = '', query = ''] = target.split('?')
  const [, , what] = decodeURIComponent(path).split('/')
  if (what === 'search') return turnsOfSearch
  const limit = what === 'list' ? Number(new URLSearchParams(query).get('limit') ?? 0) : 0
  return limit > 0 ? Math.floor(Math.min(limit, mostEntriesAtOnce) / entriesOfTurn) : 0
}

/** True for leases. Only runners may open them, because an admin of a tenant could raise its own limits with one. */
const opensSession = (method: string, target: string): boolean =>
  !['GET', 'HEAD', 'DELETE'].includes(method) &&
  /^\/vfs\/sessions(\/|$)/.test(decodeURIComponent(target.split('?')[0]!))

/**
 * True when however often a segment is decoded it is one name: no step up, no slash of any kind, no NUL. Two dots at its beginning or end are
 * refused as well, as @fastify/reply-from does.
 */
function isPlain(segment: string): boolean {
  let text = segment
  for (let depth = 0; depth <= deepest; depth++) {
    // Compatible forms of the dot and of slashes are what some file systems make of them.
    const forms = [text, text.normalize('NFKC')]
    if (forms.some((one) => /[\\/\p{Cc}]/u.test(one) || /^\.(;|$)|^\.\.|\.\.$/.test(one))) return false
    const decoded = decodedOf(text)
    if (decoded === text) return true
    // What is no encoding is a name with a percent sign, unless it was one at first: then it is not UTF-8, e.g. an overlong form.
    if (decoded === undefined) return depth > 0
    text = decoded
  }
  return false
}

function decodedOf(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}
