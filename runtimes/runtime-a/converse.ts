import type { RuntimeEvent } from '#contracts/run-event'
import { processFailed, processSilent } from './errors.ts'
import type { VendorProcess } from './process.ts'
import type { Message, PromptBlock, Query, UserMessage } from './sdk.ts'
import type { Turn } from './turn.ts'

/** Until its first word a process loads itself and connects to MCP servers, a few at a time, each for 5 s at most. */
const startMs = 60_000
/** After its last word it writes the conversation down, which takes some 100 ms. */
const lingerMs = 2_000

/** Lets the vendor answer one prompt. However it ends, the process is gone then. */
export async function* converse(
  ask: (prompt: AsyncIterable<UserMessage>) => Query,
  content: readonly PromptBlock[],
  turn: Turn,
  process: VendorProcess,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent> {
  const { promise: answered, resolve: close } = Promise.withResolvers<void>()
  // While it is open the process can be told to stop; at its end it leaves by itself.
  const prompt = async function* (): AsyncGenerator<UserMessage> {
    yield { type: 'user', message: { role: 'user', content }, parent_tool_use_id: null }
    await answered
  }
  let failure: unknown
  const query = ask(prompt())
  const messages = query[Symbol.asyncIterator]()
  const stop = (): Promise<void> => process.stop(() => query.interrupt())
  const fail = (error: unknown): void => {
    failure ??= error
    void stop()
  }
  const onAbort = (): void => void stop()
  const silence = setTimeout(() => fail(processSilent({ retryable: true })), startMs)
  let linger: NodeJS.Timeout | undefined
  try {
    if (signal.aborted) onAbort()
    else signal.addEventListener('abort', onAbort, { once: true })
    for (;;) {
      const message = await next(messages)
      if (message === undefined) break
      clearTimeout(silence)
      if (message.type === 'result') {
        close()
        linger = setTimeout(() => void stop(), lingerMs)
      }
      // Read to the end all the same: the process is still writing.
      if (failure !== undefined) continue
      try {
        yield* turn.take(message)
      } catch (error) {
        fail(error)
      }
    }
    if (failure === undefined && !turn.over) failure = processFailed({ retryable: true })
  } finally {
    clearTimeout(silence)
    clearTimeout(linger)
    signal.removeEventListener('abort', onAbort)
    close()
    if (!turn.over) await stop()
    await process.gone()
    await messages.return?.().catch(() => {})
  }
  if (failure !== undefined) throw failure
}

/** Undefined: there is no more. The vendor throws behind a result that is an error, and when its process dies. */
async function next(messages: AsyncIterator<Message>): Promise<Message | undefined> {
  try {
    const { done, value } = await messages.next()
    return done ? undefined : value
  } catch {
    return undefined
  }
}
