import { Models } from '#contracts/model'
import { entriesOf, modelScript, startScriptedModels, testModelProvider } from '#testing'
import provider from '../index.ts'

testModelProvider(
  'anthropic',
  async (t) => {
    const server = await startScriptedModels(t)
    const config = { apiKey: 'key', baseUrl: server.url }
    return (await entriesOf(t, Models, [{ name: 'anthropic', plugin: provider, config }])).get('anthropic')!
  },
  modelScript,
)
