/** The most names that a note lists for each reason. */
const mostNames = 5
const longestName = 200

/** Notes for the model about files that could not be synchronized. */
export class Notes {
  readonly #refused = new Map<string, string[]>()
  readonly #old = new Map<string, string[]>()
  readonly #sentences: string[] = []

  /** A change that exists only in the sandbox, with the reason why the VirtualFS did not get it. */
  refuse(path: string, reason: string): void {
    add(this.#refused, reason, path)
  }
  /** A file whose copy in the sandbox is outdated, with the reason. */
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

/** A file name as a single line, whatever characters it has. */
export const nameOf = (path: string): string => {
  const shown = JSON.stringify(path).slice(1, -1)
  return `'${shown.length > longestName ? `${shown.slice(0, longestName)}…` : shown}'`
}
