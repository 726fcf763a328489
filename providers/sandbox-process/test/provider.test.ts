import { sandboxProviderOf, testSandboxProvider } from '#testing'
import plugin from '../index.ts'

const entry = (config: object) => ({ name: 'sandbox-process', plugin, config })

testSandboxProvider('process', (t) => sandboxProviderOf(t, 'process', [entry({ allow: true })]))
