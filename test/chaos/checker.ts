import type { Observation, Seen } from './observed.ts'
import type { Stored, StoredEvent, StoredRun } from './stored.ts'

const terminalStatuses = ['ok', 'error', 'cancelled', 'interrupted']
const isTerminal = (type: string): boolean => type === 'result' || type === 'error'

/** Returns one sentence for each promise that the record or the clients' view breaks. Pure, so that it can be tested. */
export function check(stored: Stored, observed: readonly Observation[]): string[] {
  return [
    ...stored.runs.flatMap(logProblems),
    ...sessionProblems(stored),
    ...publicRunProblems(stored),
    ...messageProblems(stored),
    ...observed.flatMap((observation) => observationProblems(stored, observation)),
  ]
}

/** A log has one terminal event, which is the last and agrees with the status; its numbers are 1 to n without a gap. */
function logProblems({ id, status, finishedAt, events }: StoredRun): string[] {
  const problems: string[] = []
  const say = (text: string): void => void problems.push(`run ${id} (${status}): ${text}`)
  if (!terminalStatuses.includes(status)) say('has no terminal state')
  if (finishedAt === undefined) say('has no time of its end')
  const wrong = events.findIndex(({ seq }, i) => seq !== i + 1)
  if (wrong >= 0) say(`event ${wrong + 1} of its log is numbered ${events[wrong]!.seq}`)
  const ends = events.filter(({ type }) => isTerminal(type))
  if (ends.length !== 1) say(`${ends.length} terminal events`)
  const last = events.at(-1)
  if (last && !isTerminal(last.type)) say(`its log ends with ${last.type}`)
  if (ends.length === 1 && (ends[0]!.type === 'result') !== (status === 'ok')) {
    say(`its terminal event is ${ends[0]!.type}`)
  }
  return problems
}

function sessionProblems({ sessions, runs }: Stored): string[] {
  const live = new Set(runs.filter(({ status }) => status === 'running').map(({ id }) => id))
  return sessions
    .filter(({ status, run }) => status === 'running' && (run === undefined || !live.has(run)))
    .map(({ id, run }) => `session ${id} is running without a live run (${run ?? 'none'})`)
}

function publicRunProblems({ publicRuns, runs }: Stored): string[] {
  const byId = new Map(runs.map((run) => [run.id, run]))
  return publicRuns.flatMap(({ id, status, runId }) => {
    if (!['ok', 'error', 'lost'].includes(status)) return [`public run ${id} is still ${status}`]
    const run = byId.get(runId)
    // The opposite is right: the dispatch was given up, or the gateway died before the conductor had the run.
    if (status === 'ok' && run?.status !== 'ok')
      return [`public run ${id} is ok, its run ${run?.status ?? 'is unknown'}`]
    return []
  })
}

/** Each public run has one message of the user and at most one of the assistant, and there are no other messages. */
function messageProblems({ messages, publicRuns, runs }: Stored): string[] {
  const problems: string[] = []
  const of = Map.groupBy(messages, ({ publicRunId }) => publicRunId)
  const results = new Map(runs.map((run) => [run.id, run.events.at(-1)]))
  for (const { id, runId, status } of publicRuns) {
    const own = of.get(id) ?? []
    const count = (role: string): number => own.filter((message) => message.role === role).length
    if (count('user') !== 1) problems.push(`public run ${id} has ${count('user')} messages of its user`)
    if (count('assistant') > 1) problems.push(`public run ${id} has ${count('assistant')} answers`)
    const answer = own.find((message) => message.role === 'assistant')
    if (status === 'ok' && answer?.content !== results.get(runId)?.text) {
      problems.push(`the answer of public run ${id} is not the result of its run`)
    }
    of.delete(id)
  }
  for (const id of of.keys()) problems.push(`a message belongs to public run ${id}, which is unknown`)
  return problems
}

function observationProblems(stored: Stored, observation: Observation): string[] {
  const { kind, id, readings, ended, answer } = observation
  const events = readings.flat()
  const publicRun = kind === 'chat' ? stored.publicRuns.find((run) => run.id === id) : undefined
  if (kind === 'chat' && !publicRun) return [`chat ${id} was accepted and is unknown`]
  const run = stored.runs.find((one) => one.id === (publicRun?.runId ?? id))
  // A public run that the conductor never took has nothing but its end.
  if (!run) return publicRun && publicRun.status !== 'ok' ? [] : [`${kind} ${id} was accepted and has no run`]
  const problems: string[] = []
  const say = (text: string): void => void problems.push(`${kind} ${id} (${run.status}): ${text}`)
  if (!ended) say('its client never learnt how it ended')
  const ends = events.filter(({ type }) => isEnd(kind, type))
  if (ends.length > 1) say(`its client was told ${ends.length} endings`)
  if (ends.length === 1 && events.at(-1) !== ends[0]) say('its client was told more after the ending')
  const end = ends[0]
  const good = publicRun ? publicRun.status === 'ok' : run.status === 'ok'
  if (end && (end.type !== 'error') !== good) say(`its client was told ${end.type}`)
  if (answer !== undefined) {
    const known = publicRun
      ? stored.messages.find((message) => message.publicRunId === id && message.role === 'assistant')?.content
      : run.events.at(-1)?.text
    if (answer !== known) say('its client was told another answer than the one on record')
  }
  // A chat that is over by the time its client comes back is told in one event, which holds the whole answer.
  const reconstructed = kind === 'chat' && readings.length > 1 && readings.at(-1)!.length === 1
  // A gateway that has asked for a minute in vain says so, however the run ends. Nobody was shown the rest.
  const givenUp =
    publicRun?.errorCode !== undefined && ['unreachable', 'lost', 'incomplete'].includes(publicRun.errorCode)
  const whole = end !== undefined && !reconstructed && !givenUp
  for (const text of readingProblems(kind, run, events, whole)) say(text)
  return problems
}

const isEnd = (kind: Observation['kind'], type: string): boolean =>
  kind === 'chat' ? type === 'done' || type === 'error' : isTerminal(type)

/** Compares what a reader got, over all its resumes, with the log: the same events, each once, in order, none left out. */
function readingProblems(
  kind: Observation['kind'],
  run: StoredRun,
  seen: readonly Seen[],
  toTheEnd: boolean,
): string[] {
  if (seen.length === 0) return []
  const problems: string[] = []
  const shown = run.events.filter((event) => isShown(kind, event))
  const middle = seen.filter(({ type }) => !isEnd(kind, type))
  const back = middle.findIndex(({ seq }, i) => i > 0 && seq <= middle[i - 1]!.seq)
  if (back >= 0) problems.push(`event ${middle[back]!.seq} came after event ${middle[back - 1]!.seq}`)
  const endSeq = run.events.at(-1)?.seq ?? 0
  for (const event of middle) {
    const known = run.events[event.seq - 1]
    // A process that was killed may have shown a little more than it had stored; its run is interrupted, never ok.
    if (event.seq >= endSeq && run.status !== 'ok') continue
    if (!known || !isShown(kind, known)) problems.push(`event ${event.seq} was shown and is not in the log`)
    else if (known.text !== event.text) problems.push(`event ${event.seq} was shown with another text`)
  }
  const until = toTheEnd ? Number.POSITIVE_INFINITY : (middle.at(-1)?.seq ?? 0)
  const got = new Set(middle.map(({ seq }) => seq))
  const missing = shown.filter(({ seq }) => seq <= until && !got.has(seq))
  if (missing.length > 0) problems.push(`${missing.length} events were not shown, the first is ${missing[0]!.seq}`)
  return problems
}

/** Chats show text; the run stream shows all but the vendor's handle. Endings are checked apart. */
const isShown = (kind: Observation['kind'], { type }: StoredEvent): boolean =>
  !isTerminal(type) && (kind === 'chat' ? type === 'assistant' : type !== 'session_init')
