/** What is waited for. */
export interface Patience {
  /** The program's first answer: 0.1 s, and more when 300 MB come from a cold disk. */
  readonly startMs: number
  /** Answers that wait for nobody else. */
  readonly answerMs: number
  /** The end of a turn that is stopped, out of the two seconds that a stopped run has. */
  readonly interruptMs: number
  /** Neither the model nor Codex says anything; as long as the other runtimes wait for a model's first byte. */
  readonly silenceMs: number
}
export const patience: Patience = { startMs: 20_000, answerMs: 10_000, interruptMs: 500, silenceMs: 300_000 }
