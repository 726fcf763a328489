import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A model that calls a tool again and again, and knows how long it waited for each result. */
export interface CallingModel {
  readonly url: string
  /** The next run calls this tool so many times; the waits are milliseconds, from the end of its answer to the next request. */
  script(tool: string, times: number): { readonly waits: readonly number[] }
  close(): void
}

const chunk = (delta: object, finish: string | null = null): string =>
  `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 0, model: 'm', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`

export async function startCallingModel(): Promise<CallingModel> {
  let tool = ''
  let left = 0
  let answered: number | undefined
  let waits: number[] = []
  const http = createServer((request, response) => {
    const now = performance.now()
    request.resume()
    if (answered !== undefined) waits.push(now - answered)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const last = left === 0
    const id = `call_${left--}`
    const call = { index: 0, id, type: 'function', function: { name: tool, arguments: '{"path":"x"}' } }
    const body = last
      ? chunk({ role: 'assistant', content: 'Done.' }) + chunk({}, 'stop')
      : chunk({ role: 'assistant', tool_calls: [call] }) + chunk({}, 'tool_calls')
    response.end(`${body}data: [DONE]\n\n`, () => {
      answered = last ? undefined : performance.now()
    })
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`,
    script(name, times) {
      tool = name
      left = times
      waits = []
      return { waits }
    },
    close: () => void http.close(),
  }
}
