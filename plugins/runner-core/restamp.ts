import { parseLine } from '#contracts/run-event'

/**
 * The sidecar counts its lines without knowing of those that tools put between them. From the first such line on every line
 * of it gets another stamp; until then lines pass as the bytes they are.
 */
export interface Restamping {
  /** How many lines were put in. */
  readonly shift: number
  /** A line is put in before the sidecar's line `seq`. */
  insert(seq: number): void
  /** The stamp that the sidecar's line `seq` has for readers. */
  mapped(seq: number): number
  /** The line with the stamp it has for readers; undefined when it has not the stamp `seq` that is due. */
  line(line: Buffer, seq: number): Buffer | undefined
}

/** The stamp follows the type. */
const latestStart = 40

export function createRestamping(runId: string, sessionId: string): Restamping {
  const head = Buffer.from(`","runId":${JSON.stringify(runId)},"sessionId":${JSON.stringify(sessionId)},"seq":`)
  const inserted: number[] = []
  /** They are in order. A worker decides how many there are, and each of its lines asks. */
  const mapped = (seq: number): number => {
    let low = 0
    for (let high = inserted.length; low < high;) {
      const middle = (low + high) >>> 1
      if (inserted[middle]! <= seq) low = middle + 1
      else high = middle
    }
    return seq + low
  }
  return {
    get shift() {
      return inserted.length
    },
    insert: (seq) => void inserted.push(seq),
    mapped,
    line(line, seq) {
      const start = line.indexOf(head)
      if (start < 0 || start > latestStart) return undefined
      const from = start + head.length
      const digits = String(seq)
      if (line.toString('latin1', from, from + digits.length + 1) !== `${digits},`) return undefined
      // It names a line by its stamp. Rare, and so is all of this.
      if (line.includes('"supersedes":')) {
        const event = parseLine(line)
        if (event?.['type'] === 'progress' && typeof event['supersedes'] === 'number') {
          const { supersedes } = event
          return Buffer.from(JSON.stringify({ ...event, seq: mapped(seq), supersedes: mapped(supersedes) }))
        }
      }
      const stamp = Buffer.from(String(mapped(seq)))
      return Buffer.concat([line.subarray(0, from), stamp, line.subarray(from + digits.length)])
    },
  }
}
