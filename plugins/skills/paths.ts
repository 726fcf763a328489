import { setImmediate as turn } from 'node:timers/promises'
import { clip } from './format.ts'

/** The longest path in bytes, with the folder of the skill in front. */
export const mostPath = 512
const mostSegment = 128
const mostDepth = 10

/** Files and folders that systems and editors leave behind. Nobody means them to be a part of a skill. */
const litterFiles: ReadonlySet<string> = new Set(['.DS_Store', 'Thumbs.db', 'desktop.ini'])
const litterFolders: ReadonlySet<string> = new Set(['__MACOSX', '.git', '__pycache__'])
/** Reserved device names of Windows, with any extension. */
const devices = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$/i

export function isLitter(path: string): boolean {
  const segments = path.split('/')
  return litterFiles.has(segments.at(-1)!) || segments.some((segment) => litterFolders.has(segment))
}

/** Why a path cannot be used inside a skill's folder on some system. Undefined for a path that works everywhere. */
export function pathProblem(path: string): string | undefined {
  const why = reasonAgainst(path)
  return why === undefined ? undefined : `The path '${clip(path)}' ${why}.`
}

function reasonAgainst(path: string): string | undefined {
  if (path === '') return 'is empty'
  if (/[\p{Cc}\uFFFD]/u.test(path)) return 'holds a control character, or bytes that are no text'
  if (/\p{Cf}/u.test(path)) return 'holds characters that people do not see'
  if (path.includes('\\')) return 'holds a backslash: write slashes'
  if (path.startsWith('/') || /^[A-Za-z]:/.test(path)) return 'is absolute'
  if (Buffer.byteLength(path) > mostPath) return `is longer than ${mostPath} bytes`
  const segments = path.split('/')
  if (segments.length > mostDepth) return `is more than ${mostDepth} folders deep`
  for (const segment of segments) {
    if (segment === '') return 'has an empty part'
    if (segment === '.' || segment === '..') return 'leaves its folder, or names it'
    if (Buffer.byteLength(segment) > mostSegment) return `has a part longer than ${mostSegment} bytes`
    if (/[<>:"|?*]/.test(segment)) return 'holds one of < > : " | ? *, which not every system stores'
    if (/[. ]$/.test(segment) || segment.startsWith(' '))
      return 'has a part that begins or ends with a blank, or ends with a dot'
    if (devices.test(segment)) return `has the reserved name '${segment}' in it`
  }
  return undefined
}

/** Paths that are compared before others get a turn. A letter may be eighteen in its plain form. */
const atOnce = 64

/** Reports each pair of paths that collide on a case-insensitive file system: the same file, or a file and its own folder. */
export async function collisions(paths: readonly string[]): Promise<string[]> {
  const problems: string[] = []
  const seen = new Map<string, string>()
  const folders = new Map<string, string>()
  for (const [i, path] of paths.entries()) {
    if (i % atOnce === atOnce - 1) await turn()
    const segments = path.split('/').map((segment) => segment.normalize('NFKC').toLowerCase())
    const plain = segments.join('/')
    const other = seen.get(plain)
    if (other === path) problems.push(`The path '${clip(path)}' is there twice.`)
    else if (other !== undefined)
      problems.push(`The paths '${clip(other)}' and '${clip(path)}' differ only in the case or form of their letters.`)
    seen.set(plain, path)
    for (let depth = segments.length - 1; depth > 0; depth--) folders.set(segments.slice(0, depth).join('/'), path)
  }
  for (const [key, path] of seen) {
    const inside = folders.get(key)
    if (inside !== undefined) problems.push(`The path '${clip(path)}' is a file, and '${clip(inside)}' is inside it.`)
  }
  return problems
}
