import { StringDecoder } from 'node:string_decoder'
import { setImmediate as turn } from 'node:timers/promises'

/** So many bytes become text in a few milliseconds. */
const decodedAtOnce = 512 * 1024

/** The bytes of a body in one buffer that grows. A body may come in a million pieces, and each would be an object as long as it is kept. */
export class Gathered {
  #room = Buffer.alloc(0)
  #size = 0

  get size(): number {
    return this.#size
  }
  get bytes(): Buffer {
    return this.#room.subarray(0, this.#size)
  }

  /** All of them as text. Others have their turns meanwhile. */
  async text(): Promise<string> {
    const { bytes } = this
    const decoder = new StringDecoder('utf8')
    let text = ''
    for (let at = 0; at < bytes.length; at += decodedAtOnce) {
      if (at > 0) await turn()
      text += decoder.write(bytes.subarray(at, at + decodedAtOnce))
    }
    return text + decoder.end()
  }

  add(piece: Uint8Array): void {
    const from = this.#size
    this.#size += piece.length
    // Most bodies come in one piece, which is not copied.
    if (from === 0) this.#room = Buffer.from(piece.buffer as ArrayBuffer, piece.byteOffset, piece.length)
    else {
      if (this.#size > this.#room.length) this.#room = Buffer.concat([this.#room.subarray(0, from)], 2 * this.#size)
      this.#room.set(piece, from)
    }
  }
}
