import { Models } from 'agent-orc/contracts/model'
import { entriesOf, testModelProvider } from 'agent-orc/testing'
import echo from '../index.ts'

testModelProvider('echo', async (t) => (await entriesOf(t, Models, [echo])).get('echo')!, {
  model: 'parrot',
  say: (word) => word,
  hang: 'one two three four five',
  unknownModel: 'cockatoo',
})
