import { readdir, readFile, stat } from 'node:fs/promises'
import { join, relative, sep } from 'node:path'
import type { PlatformTool } from '#contracts/tools'

/** The folder that holds README.md and docs/ of this package. */
const bundledDocs = join(import.meta.dirname, '..', '..', '..')
const excerptLength = 600
const maxFiles = 500
const maxFileBytes = 1024 * 1024

/** A heading with the text up to the next one. */
interface Section {
  readonly file: string
  readonly title: string
  readonly text: string
}
type Search = (query: string, limit: number) => Section[]

/** Full-text search over README.md and docs/ of a folder, those of this package by default. Read at the first call, then kept. */
export function createSearchDocs(root = bundledDocs): PlatformTool {
  let opening: Promise<Search> | undefined
  return {
    name: 'search_docs',
    description:
      'Searches the documentation of this service and returns the best sections: title, file and an excerpt.',
    inputSchema: {
      type: 'object',
      properties: {
        query: { type: 'string', minLength: 1, maxLength: 500, description: 'A few words to look for.' },
        limit: { type: 'integer', minimum: 1, maximum: 20, default: 5 },
      },
      required: ['query'],
      additionalProperties: false,
    },
    async execute(input) {
      const query = input['query'] as string
      const limit = typeof input['limit'] === 'number' ? input['limit'] : 5
      const search = await (opening ??= readSections(root).then(indexOf))
      const results = search(query, limit).map(({ title, file, text }) => ({
        title,
        file,
        excerpt: excerptOf(text, query),
      }))
      return { ok: true, content: results.length === 0 ? 'Nothing was found.' : JSON.stringify(results) }
    },
  }
}

/** A match in a title counts three times as much as one in the text. The library is loaded at the first call. */
async function indexOf(sections: readonly Section[]): Promise<Search> {
  const { default: MiniSearch } = await import('minisearch')
  const index = new MiniSearch<Section & { readonly id: number }>({
    fields: ['title', 'text'],
    tokenize: wordsOf,
    processTerm: stem,
    searchOptions: { boost: { title: 3 } },
  })
  // The index is built in chunks: building it at once would block the process for a quarter of a second.
  const documents = sections.map((section, id) => ({ ...section, id }))
  await index.addAllAsync(documents, { chunkSize: 10 })
  return (query, limit) =>
    index
      .search(soughtIn(query))
      .slice(0, limit)
      .map(({ id }) => sections[id as number]!)
}

const wordsOf = (text: string): string[] => text.match(/[\p{L}\p{N}_]+/gu) ?? []
/** In lower case and without the `s` of a plural, so that "Profiles" finds "profile". */
const stem = (word: string): string => word.toLowerCase().replace(/(?<=...)(?<!s)s$/, '')

const ofQuestions =
  'a an are by can cover describe do does explain for how i in is of on or page the to what where which who why'
/** Question words, which no page is about: "Which page covers draining?" is about draining. */
const asking = new Set(ofQuestions.split(' ').map(stem))
const soughtIn = (query: string): string => {
  const sought = wordsOf(query).filter((word) => !asking.has(stem(word)))
  return sought.length > 0 ? sought.join(' ') : query
}

/** The part of the text around the first word of the query. */
function excerptOf(text: string, query: string): string {
  if (text.length <= excerptLength) return text
  const wanted = new Set(wordsOf(query).map(stem))
  const first = text.matchAll(/[\p{L}\p{N}_]+/gu).find(([word]) => wanted.has(stem(word)))
  const start = Math.max(0, Math.min((first?.index ?? 0) - excerptLength / 4, text.length - excerptLength))
  const cut = text.slice(start, start + excerptLength)
  return `${start > 0 ? '…' : ''}${cut}${start + excerptLength < text.length ? '…' : ''}`
}

/** README.md and every Markdown file under docs/, split by headings. Files that cannot be read are left out. */
async function readSections(root: string): Promise<Section[]> {
  const under = await readdir(join(root, 'docs'), { recursive: true, withFileTypes: true }).catch(() => [])
  const files = under
    .filter((entry) => entry.isFile() && entry.name.endsWith('.md'))
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
  const sections: Section[] = []
  for (const path of [join(root, 'README.md'), ...files].slice(0, maxFiles)) {
    const size = (await stat(path).catch(() => undefined))?.size ?? Infinity
    if (size > maxFileBytes) continue
    const text = await readFile(path, 'utf8').catch(() => '')
    sections.push(...split(relative(root, path).split(sep).join('/'), text))
  }
  return sections
}

function split(file: string, markdown: string): Section[] {
  const sections: Section[] = []
  let title = file
  let lines: string[] = []
  let fenced = false
  const close = (): void => {
    const text = lines.join('\n').trim()
    if (text !== '') sections.push({ file, title, text })
  }
  for (const line of markdown.split('\n')) {
    if (/^\s*(```|~~~)/.test(line)) fenced = !fenced
    const heading = fenced ? null : /^#{1,6}\s+(.+?)\s*#*$/.exec(line)
    if (!heading) {
      lines.push(line)
      continue
    }
    close()
    title = heading[1]!
    lines = []
  }
  close()
  return sections
}
