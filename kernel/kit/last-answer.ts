import type { IncomingMessage } from 'node:http'

/** Milliseconds that a client which is still sending gets to read its answer. */
const lingerMs = 5_000

/**
 * Lets a client read the answer to a request that it is still sending. Node closes the connection right after an answer with `connection: close`;
 * the bytes that nobody has read then make the system reset the connection, and the client reports that instead of, say, a 413. So what still
 * arrives is dropped, unparsed, until the client closes or the time is over.
 */
export function lingerAfter({ complete, socket }: IncomingMessage): void {
  if (complete) return
  // Node calls this once the answer is written, if it is the last one of the connection.
  socket.destroySoon = () => {
    const late = setTimeout(() => socket.destroy(), lingerMs).unref()
    socket.once('close', () => clearTimeout(late))
    // Reading begins again, if the request had stopped it, and Node's parser gives up the bytes to the new listener.
    socket.once('resume', () => socket.removeAllListeners('data').on('data', () => {}))
    socket.pause().end().resume()
  }
}
