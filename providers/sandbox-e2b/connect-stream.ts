// Messages of the Connect protocol, which E2B's agent inside of a sandbox speaks: https://connectrpc.com/docs/protocol

/** A message is its flags, its length in four bytes, and JSON. */
const headBytes = 5
const lastFlag = 2
/** One piece of a process's output is far less. */
const maxMessageBytes = 4 * 1024 * 1024

export function envelope(message: unknown): Buffer {
  const json = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(headBytes)
  head.writeUInt32BE(json.length, 1)
  return Buffer.concat([head, json])
}

interface Trailer {
  readonly error?: { readonly code?: string; readonly message?: string }
}

/** The messages of a stream. Throws what its end says, also when there is no end. */
export async function* messagesOf(body: AsyncIterable<Buffer>): AsyncGenerator<unknown> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const chunk of body) {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    while (rest.length >= headBytes) {
      const size = rest.readUInt32BE(1)
      if (size > maxMessageBytes) throw new Error('a message of the sandbox is too long')
      if (rest.length < headBytes + size) break
      const message: unknown = JSON.parse(rest.toString('utf8', headBytes, headBytes + size))
      const last = (rest[0]! & lastFlag) !== 0
      rest = rest.subarray(headBytes + size)
      if (!last) yield message
      else {
        const { error } = message as Trailer
        if (error) throw new Error(`the sandbox answered ${error.code ?? 'an error'}: ${error.message ?? ''}`)
        return
      }
    }
  }
  throw new Error('the stream of the sandbox was cut')
}
