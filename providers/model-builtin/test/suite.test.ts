import { Models } from '#contracts/model'
import { entriesOf, testModelProvider } from '#testing'
import provider from '../index.ts'

testModelProvider('builtin', async (t) => (await entriesOf(t, Models, [provider])).get('builtin')!, {
  model: 'demo',
  say: (word) => `Say ${word}`,
  hang: 'Tell me a story',
  unknownModel: 'gpt-none',
})
