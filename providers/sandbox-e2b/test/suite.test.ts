import { testSandboxProvider } from '#testing'
import { type FakeE2b, startFakeE2b } from './fake/server.ts'
import { providerOf, settingsFor } from './support.ts'

let fake: FakeE2b | undefined

testSandboxProvider(
  'e2b',
  async (t) => {
    fake = await startFakeE2b(t)
    return (await providerOf(t, settingsFor(fake))).provider
  },
  {
    // What E2B's agent gives to every process, and its shell.
    adds: ['USER', 'LOGNAME', 'SHLVL'],
    remains: async () => {
      const all = [...fake!.sandboxes.values()]
      const pids = await Promise.all(all.map(({ machine }) => machine.pids()))
      return [...all.map(({ sandboxID }) => sandboxID), ...pids.flat().map(String)]
    },
  },
)
