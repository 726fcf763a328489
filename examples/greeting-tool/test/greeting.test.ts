import { testToolProvider } from 'agent-orc/testing'
import greeting from '../index.ts'

testToolProvider('greeting', () => [greeting], {
  calls: [
    { tool: 'greet', input: { name: 'Ada' }, matches: /^Hello, Ada!$/ },
    { tool: 'greet', input: { name: 'Ada', language: 'eo' }, matches: /^Saluton/ },
    { tool: 'greet', input: {}, ok: false },
  ],
})
