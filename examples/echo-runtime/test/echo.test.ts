import { runtimeOf, testRuntime } from 'agent-orc/testing'
import echo from '../index.ts'

testRuntime('echo', (t) => runtimeOf(t, 'echo', [echo]), {
  say: (word) => word,
  hang: 'wait',
  memory: { tell: (word) => word, ask: 'recall' },
})
