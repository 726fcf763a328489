/** A place in a session: behind event `seq` of its `ordinal`th run. `0.0` is in front of everything. */
export interface Cursor {
  readonly ordinal: number
  readonly seq: number
}

export const beginning: Cursor = { ordinal: 0, seq: 0 }

/** `<ordinal>.<seq>`, as the stream numbers its events. Anything else means from the beginning. */
export function readCursor(text: unknown): Cursor {
  const [, ordinal, seq] = (typeof text === 'string' && /^(\d{1,9})\.(\d{1,9})$/.exec(text)) || []
  return ordinal === undefined ? beginning : { ordinal: Number(ordinal), seq: Number(seq) }
}

export const writeCursor = (ordinal: number, seq: number): string => `${ordinal}.${seq}`
