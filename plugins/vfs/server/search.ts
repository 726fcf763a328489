import type { Readable } from 'node:stream'
import type { VfsMatch, VfsMatches, VfsSearchQuery } from '#contracts/vfs'
import type { FileInfo, Tree } from './tree.ts'

/** The most files, bytes and milliseconds of one search. */
const mostFiles = 10_000
const mostBytes = 64 * 1024 * 1024
const mostMs = 5_000
/** Bytes of one file that are searched. */
const mostOfFile = 4 * 1024 * 1024
/** A file with a NUL byte within its first 8 KiB is treated as binary. */
const beginning = 8 * 1024
const shownCharacters = 200
/** A line with more characters is searched in parts. Joining the whole line at each chunk would take quadratic time. */
const longestLine = 64 * 1024

/** Searches trees one after another, within bounds of files, bytes and time. */
export async function search(trees: ReadonlyMap<string, Tree>, query: VfsSearchQuery): Promise<VfsMatches> {
  const { q, in: where = 'both', path = '', limit = 50 } = query
  const wanted = q.toLowerCase()
  const left = { files: mostFiles, bytes: mostBytes, until: performance.now() + mostMs }
  const matches: VfsMatch[] = []
  for (const [mount, tree] of trees) {
    for await (const entry of tree.walk(path, { after: '', recursive: true, limit: 1_000 })) {
      if (matches.length === limit || left.files-- === 0 || left.bytes <= 0 || performance.now() > left.until) {
        return { matches, complete: false }
      }
      const info = entry as FileInfo
      const found = { mount, path: info.path, bytes: info.bytes }
      const line = where === 'name' ? undefined : await lineWith(tree, info, wanted, left)
      if (line) matches.push({ ...found, ...line })
      else if (where !== 'text' && info.path.toLowerCase().includes(wanted)) matches.push(found)
    }
  }
  return { matches, complete: true }
}

/** The first line of a file that has the text. */
async function lineWith(
  tree: Tree,
  { path, bytes }: FileInfo,
  wanted: string,
  left: { bytes: number },
): Promise<{ line: number; text: string } | undefined> {
  const file = await tree.open(path)
  if (!file) return undefined
  if (bytes === 0) return void (await file.close())
  const body = await file.read({ from: 0, to: Math.min(bytes, mostOfFile) - 1 })
  try {
    const decoder = new TextDecoder('utf-8')
    let [line, rest, first] = [1, '', true]
    for await (const chunk of body as Readable & AsyncIterable<Uint8Array>) {
      left.bytes -= chunk.length
      if (first && chunk.subarray(0, beginning).includes(0)) return undefined
      first = false
      const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
      rest = lines.pop()!
      const at = lines.findIndex((one) => one.toLowerCase().includes(wanted))
      if (at >= 0) return { line: line + at, text: shown(lines[at]!, wanted) }
      line += lines.length
      if (rest.length <= longestLine) continue
      if (rest.toLowerCase().includes(wanted)) return { line, text: shown(rest, wanted) }
      // The searched text may begin at the end of this part, so the end is kept.
      rest = rest.slice(-2 * wanted.length)
    }
    return rest.toLowerCase().includes(wanted) ? { line, text: shown(rest, wanted) } : undefined
  } finally {
    body.destroy()
  }
}

/** The part of a line around the match. */
function shown(line: string, wanted: string): string {
  const from = Math.max(0, line.toLowerCase().indexOf(wanted) - shownCharacters / 2)
  return line
    .slice(from, from + shownCharacters)
    .trim()
    .toWellFormed()
}
