import { testToolProvider } from '#testing'
import platformTools from '../index.ts'

testToolProvider('platform-tools', () => [platformTools], {
  calls: [
    { tool: 'calculate', input: { expression: '17 * 3' }, matches: /51/ },
    { tool: 'calculate', input: { expression: '17 *' }, ok: false },
    { tool: 'current_time', input: { timeZone: 'Europe/Berlin' }, matches: /\d{4}-\d\d-\d\d/ },
    { tool: 'search_docs', input: { query: 'draining a runner' }, matches: /drain/i },
    { tool: 'http_fetch', input: { url: 'http://127.0.0.1:1/' }, ok: false },
  ],
})
