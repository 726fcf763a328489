/** What a hostile tenant has: keys of its own, and the addresses that everybody has. */
export interface Hostile {
  readonly tenant: string
  readonly conductor: string
  readonly gateway: string
  /** Of an admin of its tenant. */
  readonly key: string
  /** A key that is no more. */
  readonly revoked: string
  /** A published agent of its own. */
  readonly agent: { readonly path: string; readonly key: string }
  /** Profiles on models that answer at once, never, and with 14 tasks for agents like themselves. */
  readonly profiles: { readonly quick: string; readonly hanging: string; readonly delegating: string }
  /** Of 50 tools, which its tenant may enter in its catalog. */
  readonly mcpServer: string
  readonly limits: Plan
}

/** The limits that attacks run into. */
export type Plan = Readonly<
  Record<
    'delegatedRuns' | 'delegationDepth' | 'delegatedAtOnce' | 'readsPerMinute' | 'writesPerMinute' | 'chatsPerMinute',
    number
  >
>

/** Counts what became of requests, by status. */
export type Told = (status: number | string) => void

/** What has to hold after an attack, and whether it does. */
export interface Verdict {
  readonly text: string
  readonly ok: boolean
}

/** One way to take what is not one's own. It goes on until it is told to stop. */
export interface Attack {
  readonly name: string
  /** How long it goes on before the victim is measured; 2 s unless given. */
  readonly warmMs?: number
  /** The shortest time in which it is seen whole, in seconds. */
  readonly leastSeconds?: number
  /** What it does first, before the victim is measured. */
  prepare?(hostile: Hostile, told: Told): Promise<void>
  run(hostile: Hostile, told: Told, stop: AbortSignal): Promise<void>
  /** What it is answered when it does what it is for; that it succeeds, or is at a limit, unless given. */
  readonly meant?: RegExp
  /** It is for what a tenant may do at most: thin is it where little is done, however much its limits refuse. */
  readonly atLimits?: true
  /** What it got, beside how the victim fared. */
  judge?(hostile: Hostile): Promise<readonly Verdict[]>
}

/** A limit of the tenant has stopped it, with 409 or 429; or it succeeds. */
const usuallyMeant = /^(2\d\d|409|429|opened)$/

/** What became of an attack, in how long a time. */
export interface Outcome {
  readonly answers: Readonly<Record<string, number>>
  readonly seconds: number
  readonly limits: Plan
}

/**
 * How much of an attack was one: it is thin where most of its requests missed what they were to hurt. Most answers to one that is at
 * its limits are refusals, which say nothing of that: there at least half of the requests that the limits allow must have been done.
 */
export function thinness(
  { meant = usuallyMeant, atLimits }: Pick<Attack, 'meant' | 'atLimits'>,
  { answers, seconds, limits }: Outcome,
): { readonly succeeded: number; readonly verdict: Verdict } {
  const count = (status: RegExp): number =>
    Object.entries(answers).reduce((sum, [one, times]) => sum + (status.test(one) ? times : 0), 0)
  const all = Math.max(1, count(/^/))
  const done = count(/^2\d\d$/)
  const hit = count(meant) / all
  const what = `it is no thin attack: ${Math.round(100 * hit)} % of its answers are what it meant`
  const { readsPerMinute, writesPerMinute, chatsPerMinute } = limits
  const allowed = (readsPerMinute + writesPerMinute + chatsPerMinute) / 60
  const rate = done / Math.max(1, seconds)
  const work = atLimits
    ? `, and ${rate.toFixed(1)} requests a second were done, of ${allowed} that its limits allow in the long run`
    : ''
  const ok = hit >= 0.5 && (!atLimits || rate >= allowed / 2)
  return { succeeded: done / all, verdict: { text: what + work, ok } }
}
