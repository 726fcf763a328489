/** One event or frame as a client got it. */
export interface Seen {
  /** 0 when it carried no id. */
  readonly seq: number
  readonly type: string
  readonly text?: string
}

/** What one client knows about one run that it was told is accepted, over all its connections. */
export interface Observation {
  /** `chat`: a public run, by its public id. `run`: a run of the conductor's API. */
  readonly kind: 'chat' | 'run'
  readonly id: string
  /** One list for each connection, in the order of arrival. */
  readonly readings: readonly (readonly Seen[])[]
  /** The answer of a synchronous call or of a question for the run, when there was one. */
  readonly answer?: string
  /** The client asked for its end. */
  readonly cancelled: boolean
  /** The client learnt how it ended. */
  readonly ended: boolean
}
