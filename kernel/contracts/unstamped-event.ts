import { Value } from '@sinclair/typebox/value'
import { RuntimeEvent } from './run-event.ts'

/**
 * An event of a sidecar that does not stamp its lines: what the specification leaves open is filled in. Undefined: it is
 * none. `answer` is what the run has said so far: the text of a `result` that carries none.
 */
export function readUnstamped(line: Record<string, unknown>, answer: () => string): RuntimeEvent | undefined {
  const { runId: _run, sessionId: _session, seq: _seq, at: _at, ...event } = line
  const type = String(event['type'])
  const filled = { ...defaults.get(type), ...event }
  if (type === 'result' && filled['text'] === undefined) filled['text'] = answer()
  return Value.Check(RuntimeEvent, filled) ? filled : undefined
}

/** Fields that such a sidecar may leave out, because the specification names only `type`. */
const defaults: ReadonlyMap<string, Record<string, unknown>> = new Map([
  ['progress', { stage: 'sidecar' }],
  ['assistant', { delta: true }],
  ['tool_call', { arguments: {} }],
  ['tool_result', { ok: true, name: '', content: '' }],
  ['usage', { inputTokens: 0, outputTokens: 0, model: '' }],
  ['result', { finishReason: 'stop' }],
  ['error', { code: 'sidecar_error', message: 'The run failed.' }],
])
