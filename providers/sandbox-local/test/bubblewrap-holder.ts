// A runner of its own, as far as its sandboxes go: one that can be killed, be another user or have another machine. Says
// what it has, launches the order that it is given, says where, and stays.
import { SandboxProviders } from '#contracts/sandbox'
import { testKernel } from '#testing'
import { definePlugin } from '#kernel'
import plugin from '../bubblewrap/index.ts'

const { order, pause, ...config } = JSON.parse(process.argv[2]!)
const say = (value: object): void => void process.stdout.write(`${JSON.stringify(value)}\n`)
const probe = definePlugin({
  name: 'probe',
  requires: { providers: SandboxProviders },
  async setup({ deps }) {
    const provider = deps.providers.get('bubblewrap')
    say({ offered: provider !== undefined })
    if (!provider || !order) return {}
    const { sandboxId } = await provider.launch(order, new AbortController().signal)
    if (pause) await provider.pause(sandboxId)
    say({ sandboxId })
    process.once('SIGTERM', () => void provider.destroy(sandboxId).then(() => say({ destroyed: true })))
    return {}
  },
})
const entry = { name: 'sandbox-bubblewrap', plugin, config: { tenants: '*', ...config } }
const { logs } = await testKernel({ after: () => {} }, [entry, probe], { listeners: [] })
for (const { msg } of logs) say({ log: msg })
setInterval(() => {}, 60_000)
