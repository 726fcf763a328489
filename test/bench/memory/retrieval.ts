import MiniSearch from 'minisearch'
import pg from 'pg'
import { say } from '../command.ts'
import { conversation, type Kind, type Question } from './conversations.ts'
import type { Service } from './service.ts'

/** What is found for a question, best first, by ids of turns. */
type Finder = (question: Question) => Promise<readonly string[]>

interface Sums {
  questions: number
  at5: number
  at8: number
  mrr: number
}
export type Figures = Readonly<Record<string, Readonly<Record<Kind | 'all', Sums>>>>

const most = 8

/** Recall of the evidence within the first 5 and 8, and the reciprocal rank of its first, of each method. */
export async function measureRetrieval(
  service: Service,
  { conversations, seed }: { conversations: number; seed: number },
): Promise<Figures> {
  const client = new pg.Client({ connectionString: service.dsn })
  await client.connect()
  await client.query(`CREATE TEMP TABLE turns (conversation int, id text, words tsvector)`)
  const figures: Record<string, Record<string, Sums>> = {}
  for (let number = 0; number < conversations; number++) {
    say(`conversation ${number + 1} of ${conversations}`)
    const { turns, questions } = conversation(number, seed)
    const profile = `talk-${number}`
    await service.ask('POST', '/api/profiles', { name: profile })
    const bm25 = new MiniSearch<{ id: string; text: string }>({ fields: ['text'] })
    const turnOf = new Map<unknown, string>()
    for (const { id, text, sessionId, at } of turns) {
      const made = (await service.ask('POST', `/api/profiles/${profile}/memories`, {
        rawInput: text,
        sessionId,
        eventAt: at,
      })) as { id?: string }
      if (made.id !== undefined && !turnOf.has(made.id)) turnOf.set(made.id, id)
      bm25.add({ id, text })
      await client.query(`INSERT INTO turns VALUES ($1, $2, to_tsvector('english', $3))`, [number, id, text])
    }
    const finders: Record<string, Finder> = {
      ours: async ({ text, at }) => {
        const query = new URLSearchParams({ q: text, limit: String(most), at })
        const { items } = (await service.ask(
          'GET',
          `/api/profiles/${profile}/memories/search?${query.toString()}`,
        )) as { items: { id: string }[] }
        return items.map(({ id }) => turnOf.get(id) ?? '')
      },
      'plain tsvector': async ({ text }) => {
        const { rows } = await client.query<{ id: string }>(plain, [number, text])
        return rows.map(({ id }) => id)
      },
      'BM25 (minisearch)': async ({ text }) =>
        bm25
          .search(text)
          .slice(0, most)
          .map(({ id }) => String(id)),
    }
    for (const question of questions)
      for (const [name, find] of Object.entries(finders)) add((figures[name] ??= {}), question, await find(question))
  }
  await client.end()
  return figures as Figures
}

// Any of its words, ranked as PostgreSQL ranks: all of them at once are in no turn.
const plain = `SELECT id FROM turns, (
    SELECT string_agg(quote_literal(word), ' | ')::tsquery AS asked FROM unnest(tsvector_to_array(to_tsvector('english', $2))) AS word) q
  WHERE conversation = $1 AND words @@ asked ORDER BY ts_rank(words, asked) DESC LIMIT ${most}`

function add(of: Record<string, Sums>, { kind, evidence }: Question, found: readonly string[]): void {
  const within = (first: number): number =>
    evidence.filter((id) => found.slice(0, first).includes(id)).length / evidence.length
  const place = found.findIndex((id) => evidence.includes(id))
  for (const key of [kind, 'all']) {
    const sums = (of[key] ??= { questions: 0, at5: 0, at8: 0, mrr: 0 })
    sums.questions++
    sums.at5 += within(5)
    sums.at8 += within(8)
    sums.mrr += place < 0 ? 0 : 1 / (place + 1)
  }
}
