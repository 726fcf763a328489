import { definePlugin } from 'agent-orc/kernel'
import { type PlatformTool, PlatformTools } from 'agent-orc/contracts/tools'

/** A tool that profiles use with `tools: [greet]`. It runs in the runner, on behalf of a session. */
const greet: PlatformTool = {
  name: 'greet',
  description: 'Greets a person by name. Use it when somebody asks for a greeting.',
  inputSchema: {
    type: 'object',
    properties: {
      name: { type: 'string', minLength: 1, maxLength: 100, description: 'Who is greeted.' },
      language: { type: 'string', enum: ['en', 'de', 'eo'], default: 'en' },
    },
    required: ['name'],
    additionalProperties: false,
  },
  // `input` satisfies the schema already. What goes wrong is told to the model: return `ok: false` with a plain sentence.
  async execute({ name, language }, { signal }) {
    signal.throwIfAborted()
    const words: Record<string, string> = { en: 'Hello', de: 'Hallo', eo: 'Saluton' }
    return { ok: true, content: `${words[String(language)]}, ${String(name)}!` }
  },
}

export default definePlugin({
  name: 'greeting',
  provides: { tools: PlatformTools },
  setup: async () => ({ tools: { greet } }),
})
