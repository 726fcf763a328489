import { definePlugin } from '#kernel'
import { type PlatformTool, PlatformTools } from '#contracts/tools'
import { callFixture } from './fixture.ts'

/** What scenarios call of a session: tools of the platform answer with text. */
const names = ['test_simple_text', 'test_error_handling', 'test_streaming_elicitation', 'test_logging_tool']

/** A plugin that gives runners the tools of the suite. */
export default definePlugin({
  name: 'fixture-tools',
  provides: { tools: PlatformTools },
  setup: async () => ({ tools: Object.fromEntries(names.map((name) => [name, toolOf(name)])) }),
})

const toolOf = (name: string): PlatformTool => ({
  name,
  description: `Is called by the suite as ${name}.`,
  inputSchema: { type: 'object', properties: {} },
  async execute() {
    const { content, isError } = await callFixture(name)
    return { ok: isError !== true, content: content.map((part) => (part.type === 'text' ? part.text : '')).join('') }
  },
})
