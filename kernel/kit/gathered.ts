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
