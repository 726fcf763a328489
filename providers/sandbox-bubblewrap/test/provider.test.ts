import { sandboxProviderOf, testSandboxProvider } from '#testing'
import plugin from '../index.ts'

testSandboxProvider('bubblewrap', (t) =>
  sandboxProviderOf(t, 'bubblewrap', [{ name: 'sandbox-bubblewrap', plugin, config: {} }]),
)
