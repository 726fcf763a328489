import type { ModelFetch } from '#contracts/model'

/** Runs work with the same name one after the other, and work with different names concurrently. */
export class Turns {
  readonly #last = new Map<string, Promise<unknown>>()

  async take<T>(name: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(name) ?? Promise.resolve()
    const mine = before.then(work)
    const settled = mine.catch(() => {})
    this.#last.set(name, settled)
    try {
      return await mine
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name)
    }
  }
}

/** A fetch whose large answers take turns: each part of a large answer waits behind small work. */
export const inTurns =
  (fetch: ModelFetch, smallBytes: number, turnOf: (part: Uint8Array) => Promise<void>): ModelFetch =>
  async (input, init) => {
    const answer = await fetch(input, init)
    const { status, statusText, headers, body } = answer
    if (!body || Number(headers.get('content-length') ?? Infinity) <= smallBytes) return answer
    let bytes = 0
    const paced = body.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        async transform(part, controller) {
          bytes += part.length
          if (bytes > smallBytes) await turnOf(part)
          controller.enqueue(part)
        },
      }),
    )
    return new Response(paced, { status, statusText, headers })
  }
