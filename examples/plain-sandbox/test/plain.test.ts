import { sandboxProviderOf, testSandboxProvider } from 'agent-orc/testing'
import plain from '../index.ts'

testSandboxProvider('plain', (t) => sandboxProviderOf(t, 'plain', [plain]), {
  cannot: { copies: 'A process that leaves the group of its worker is not followed.' },
})
