/** Names that are told of each reason. */
const mostNames = 5
const longestName = 200

/** What is said to the model about files that could not be settled. */
export class Notes {
  readonly #kept = new Map<string, string[]>()
  readonly #sentences: string[] = []

  /** A change that the virtual file system does not have, and why. It is still in the sandbox. */
  refuse(path: string, reason: string): void {
    const paths = this.#kept.get(reason) ?? []
    paths.push(path)
    this.#kept.set(reason, paths)
  }
  tell(sentence: string): void {
    this.#sentences.push(sentence)
  }
  get text(): string {
    const kept = [...this.#kept].map(([reason, paths]) => {
      const names = paths.slice(0, mostNames).map(nameOf).join(', ')
      const more = paths.length > mostNames ? ` and ${paths.length - mostNames} more` : ''
      return `Only the sandbox has your change of ${names}${more}: ${reason}.`
    })
    return [...kept, ...this.#sentences].map((sentence) => `[vfs: ${sentence}]`).join('\n')
  }
}

/** A name on one line, whatever is in it. */
export const nameOf = (path: string): string => {
  const shown = JSON.stringify(path).slice(1, -1)
  return `'${shown.length > longestName ? `${shown.slice(0, longestName)}…` : shown}'`
}
