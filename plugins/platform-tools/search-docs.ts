import type { PlatformTool } from '#contracts/tools'
import { createIndex, type Ranked, wordsOf } from './bm25.ts'
import { readSections, type Section } from './docs.ts'

const excerptLength = 600

/** Full-text search over the documentation that ships with the service. Read at the first call, then kept. */
export function createSearchDocs(root: string): PlatformTool {
  type Search = (query: string, limit: number) => Ranked<Section>[]
  let opening: Promise<Search> | undefined
  const open = async (): Promise<Search> => createIndex(await readSections(root), (section) => section)
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
      const search = await (opening ??= open())
      const results = search(query, limit).map(({ item: { title, file, text } }) => ({
        title,
        file,
        excerpt: excerptOf(text, query),
      }))
      return { ok: true, content: results.length === 0 ? 'Nothing was found.' : JSON.stringify(results) }
    },
  }
}

/** The part of the text around the first word that was asked for. */
function excerptOf(text: string, query: string): string {
  if (text.length <= excerptLength) return text
  const wanted = new Set(wordsOf(query))
  let at = 0
  for (const match of text.matchAll(/[\p{L}\p{N}_]+/gu)) {
    if (wordsOf(match[0]).some((word) => wanted.has(word))) {
      at = match.index
      break
    }
  }
  const start = Math.max(0, Math.min(at - excerptLength / 4, text.length - excerptLength))
  const cut = text.slice(start, start + excerptLength)
  return `${start > 0 ? '…' : ''}${cut}${start + excerptLength < text.length ? '…' : ''}`
}
