/**
 * Where a run is. `dispatching`: no runner has taken the attempt. `streaming`: one has. `waiting`: the attempt was lost, the
 * next one follows. `refused`: no runner will take it, and it is being taken back. `ending`: how it ends is decided and is
 * being stored. The other three are final: it `ended` here, was `left` to another process, or was `discarded` as if it had
 * never been asked for.
 */
export type RunState = 'dispatching' | 'streaming' | 'waiting' | 'refused' | 'ending' | 'ended' | 'left' | 'discarded'

const next: Readonly<Record<RunState, readonly RunState[]>> = {
  dispatching: ['streaming', 'waiting', 'refused', 'ending', 'left'],
  streaming: ['waiting', 'ending', 'left'],
  waiting: ['dispatching', 'ending', 'left'],
  refused: ['discarded', 'ending', 'left'],
  ending: ['ended', 'left'],
  ended: [],
  left: [],
  discarded: [],
}

/** What is no transition changes nothing: somebody else was first. */
export const leadsTo = (from: RunState, to: RunState): boolean => next[from].includes(to)
export const isFinal = (state: RunState): boolean => next[state].length === 0
