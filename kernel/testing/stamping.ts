import { linesOf } from '#kernel'
import { createEventEncoder, type EventEncoder, parseLine } from '#contracts/run-event'
import type { SidecarLink } from '#contracts/sidecar'
import { readUnstamped } from '#contracts/unstamped-event'

/**
 * A sidecar as its runner sees it: the events of one that writes no `seq` are stamped, and what the specification leaves open in
 * them is filled in. A line that is no event goes on as it is, for the reader to say so.
 */
export const stamping = (link: SidecarLink): SidecarLink => ({
  ...link,
  async *run(envelope, signal) {
    const { runId, sessionId, firstSeq } = envelope
    let encoder: EventEncoder | undefined
    let begun = false
    let answer = ''
    for await (const chunk of link.run(envelope, signal)) {
      const out: Buffer[] = []
      for (const line of linesOf(chunk)) {
        const said = parseLine(line)
        if (!begun && said && said['seq'] === undefined) encoder = createEventEncoder(runId, sessionId, firstSeq)
        begun = true
        const event = encoder && said && readUnstamped(said, () => answer)
        if (event?.type === 'assistant') answer += event.text
        out.push(encoder && event ? Buffer.from(encoder.line(event)) : Buffer.concat([line, newline]))
      }
      yield Buffer.concat(out)
    }
  },
})

const newline = Buffer.from('\n')
