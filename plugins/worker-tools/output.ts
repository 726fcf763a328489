/** What is kept of a process's output, at its beginning and at its end: errors are usually last. */
export const headBytes = 24 * 1024
export const tailBytes = 40 * 1024

export interface Output {
  add(chunk: Buffer): void
  text(): string
}

/** Holds the beginning and the end of an output of any length. */
export function createOutput(): Output {
  const head: Buffer[] = []
  let headSize = 0
  const tail: Buffer[] = []
  let tailSize = 0
  let dropped = 0
  return {
    add(chunk) {
      const first = chunk.subarray(0, headBytes - headSize)
      if (first.length > 0) {
        head.push(first)
        headSize += first.length
      }
      const rest = chunk.subarray(first.length)
      if (rest.length === 0) return
      tail.push(rest)
      tailSize += rest.length
      while (tailSize - tail[0]!.length >= tailBytes) {
        const gone = tail.shift()!.length
        tailSize -= gone
        dropped += gone
      }
    },
    text() {
      const end = Buffer.concat(tail)
      const over = Math.max(0, end.length - tailBytes)
      const left = dropped + over
      if (left === 0) return decoded(Buffer.concat([...head, end]))
      return `${decoded(Buffer.concat(head))}\n[${left} bytes are left out here]\n${decoded(end.subarray(over))}`
    },
  }
}

/** A cut may go through a character: its bytes become the usual sign for that. */
const decoded = (bytes: Buffer): string => bytes.toString('utf8')
