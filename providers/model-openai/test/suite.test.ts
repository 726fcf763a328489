import { Models } from '#contracts/model'
import { entriesOf, modelScript, startScriptedModels, testModelProvider } from '#testing'
import provider from '../index.ts'

testModelProvider(
  'openai',
  async (t) => {
    const server = await startScriptedModels(t)
    const config = { apiKey: 'key', baseUrl: server.url }
    return (await entriesOf(t, Models, [{ name: 'openai', plugin: provider, config }])).get('openai')!
  },
  modelScript,
)
