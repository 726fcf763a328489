import type { McpToolCall } from './protocol.ts'

/** Longer results are cut: an event is kept and shown, and the model has the rest. */
const maxChars = 200_000

export function outcomeOf(name: string, { status, result, error }: McpToolCall): { ok: boolean; content: string } {
  const ok = status === 'completed'
  if (!result) return { ok, content: refusal(name, error?.message ?? '') }
  const texts = result.content.map(textOf)
  if (texts.length === 0 && result.structuredContent) texts.push(JSON.stringify(result.structuredContent))
  const content = texts.join('\n')
  return {
    ok,
    content: content.length > maxChars ? `${content.slice(0, maxChars)}\n[cut after ${maxChars} characters]` : content,
  }
}

/** The server's words about the arguments are for whoever reads the run; those of a connection name addresses. */
function refusal(name: string, message: string): string {
  const words = /Mcp error: -32602: ([^]*)$/.exec(message)?.[1]
  return words === undefined
    ? `The tool '${name}' could not be called.`
    : `The tool '${name}' refused the call: ${words.slice(0, 1_000)}`
}

function textOf(part: unknown): string {
  const { type, text, resource, name, uri } = part as Readonly<Record<string, unknown>>
  if (type === 'text') return String(text)
  if (type === 'resource') return String((resource as { text?: unknown } | undefined)?.text ?? '[resource]')
  return type === 'resource_link' ? `[${String(name)}: ${String(uri)}]` : `[${String(type)}]`
}
