/** What the proxy does not pass on although the server would answer it: leases are of runners, and erasing of the retention. */
const ours = /^\/vfs\/(leases|tenant)(\/|$)/
const publicPrefix = '/api'
/** How often an encoding may be within another one; deeper text is refused. */
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

/** True for what only this server itself has an answer to. */
export const isOurs = (target: string): boolean => ours.test(decodeURIComponent(target.split('?')[0]!))

/** True for leases, which runners alone open: an admin of a tenant could give itself other limits. */
export const opensSession = (method: string, target: string): boolean =>
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
