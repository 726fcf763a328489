import { testSandboxProvider } from '#testing'
import { bubblewrapForTests, marker, remains } from './bubblewrap.ts'

testSandboxProvider('bubblewrap', (t) => bubblewrapForTests(t), { order: { env: marker }, remains })
