export type Question = readonly [name: string, path: string]

/** What is asked of the API, by name. Some questions need something of an answer: a session, a place in the middle. */
export async function questions(ask: (path: string) => Promise<Response>): Promise<readonly Question[]> {
  const day = (ago: number): string => new Date(Date.now() - ago * 86_400_000).toISOString()
  const [run] = (await (await ask('/api/runs?limit=1&offset=20')).json()) as { sessionId: string }[]
  const middle = await ask(`/api/runs?limit=1&to=${day(15)}`)
  const cursor = middle.headers.get('x-next-cursor')
  await middle.arrayBuffer()
  const runs = (query: string): string => `/api/runs?limit=50${query}`
  return [
    ['runs', runs('')],
    ['runs, by cursor in the middle', runs(`&cursor=${cursor}`)],
    ['runs, status error', runs('&status=error')],
    ['runs, status cancelled', runs('&status=cancelled')],
    ['runs, status ok', runs('&status=ok')],
    ['runs, status running', runs('&status=running')],
    ['runs, status queued', runs('&status=queued')],
    ['runs, profile', runs('&profile=profile7')],
    ['runs, profile and error', runs('&profile=profile7&status=error')],
    ['runs, profile without any', runs('&profile=nobody')],
    ['runs, session', runs(`&sessionId=${run!.sessionId}`)],
    ['runs, one day', runs(`&from=${day(10)}&to=${day(9)}`)],
    ['sessions', '/api/sessions?limit=50'],
    ['sessions, text', '/api/sessions?limit=50&q=ofile7'],
    ['sessions, text without any', '/api/sessions?limit=50&q=nobody'],
    ['stats, an hour', '/api/stats/overview?window=1h'],
    ['stats, a day', '/api/stats/overview?window=24h'],
    ['stats, 30 days', '/api/stats/overview?window=30d'],
    ['series, an hour', '/api/stats/timeseries?window=1h'],
    ['series, a day', '/api/stats/timeseries?window=24h'],
    ['series, 30 days', '/api/stats/timeseries?window=30d'],
    ['profiles, 30 days', '/api/stats/agents?window=30d'],
    ['usage, 30 days', '/api/usage?window=30d'],
  ]
}
