/** Names that are told of each reason. */
const mostNames = 5
const longestName = 200

/** What is said to the model about files that could not be settled. */
export class Notes {
  readonly #refused = new Map<string, string[]>()
  readonly #old = new Map<string, string[]>()
  readonly #sentences: string[] = []

  /** A change that the virtual file system does not have, and why. It is still in the sandbox. */
  refuse(path: string, reason: string): void {
    add(this.#refused, reason, path)
  }
  /** A file that the sandbox does not have as it is by now, and why. */
  old(path: string, reason: string): void {
    add(this.#old, reason, path)
  }
  tell(sentence: string): void {
    this.#sentences.push(sentence)
  }
  get text(): string {
    const refused = [...this.#refused].map(
      ([why, paths]) => `only the sandbox has your change of ${namesOf(paths)}: ${why}`,
    )
    const old = [...this.#old].map(
      ([why, paths]) => `the sandbox does not have ${namesOf(paths)} as it is by now: ${why}`,
    )
    return [...refused, ...old, ...this.#sentences]
      .map((sentence) => `[vfs: ${sentence.replace(/\.$/, '')}.]`)
      .join('\n')
  }
}

function add(to: Map<string, string[]>, reason: string, path: string): void {
  const paths = to.get(reason) ?? []
  paths.push(path)
  to.set(reason, paths)
}

function namesOf(paths: readonly string[]): string {
  const names = paths.slice(0, mostNames).map(nameOf).join(', ')
  return paths.length > mostNames ? `${names} and ${paths.length - mostNames} more` : names
}

/** A name on one line, whatever is in it. */
export const nameOf = (path: string): string => {
  const shown = JSON.stringify(path).slice(1, -1)
  return `'${shown.length > longestName ? `${shown.slice(0, longestName)}…` : shown}'`
}
