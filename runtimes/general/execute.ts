import type { RuntimeEvent } from '#contracts/run-event'
import { execute, type PendingCall } from './calls.ts'
import type { ModelSettings } from './config.ts'
import type { ToolSet } from './tools/toolset.ts'
import type { OpenTurn } from './turn.ts'

/** All at once; their results in the order of the calls. Images follow them where the model can look at them. */
export async function* executeAll(
  tools: ToolSet | undefined,
  calls: readonly PendingCall[],
  turn: OpenTurn,
  { images: looks = false }: ModelSettings,
): AsyncGenerator<RuntimeEvent> {
  const outcomes = calls.map((call) => execute(tools, call))
  const images = []
  for (const [i, { part, name }] of calls.entries()) {
    const outcome = await outcomes[i]!
    const { ok, content } = outcome
    turn.hears(part, ok, content)
    if (looks && outcome.images) images.push(...outcome.images)
    yield { type: 'tool_result', id: part.toolCallId, name, ok, content }
  }
  if (images.length > 0) turn.sees(images)
}
