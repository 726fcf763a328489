import type { Fleet } from '#contracts/runner'
import type { SkillPackage } from './package.ts'

/** What authors of skills call tools that the platform has under another name. */
const others: ReadonlyMap<string, string> = new Map([
  ['Bash', 'shell'],
  ['Read', 'read_file'],
  ['Write', 'write_file'],
  ['Edit', 'write_file'],
  ['MultiEdit', 'write_file'],
  ['Glob', 'list_files'],
  ['Grep', 'list_files'],
  ['LS', 'list_files'],
  ['WebFetch', 'http_fetch'],
  ['Task', 'delegate'],
  ['Skill', 'skill_read'],
])

/** The platform's name of a tool in `allowed-tools`, without the pattern of `Bash(git:*)`; one that it does not know stays as it is. */
export function platformTool(given: string): string {
  const bare = given.replace(/\(.*\)$/s, '')
  return others.get(bare) ?? bare
}

/** Explains tools, and is of no use to whoever does not have them. */
const explainsTools = ({ name }: SkillPackage): boolean => name.startsWith('using-')
const fits = ({ allowedTools }: SkillPackage, tools: ReadonlySet<string>): boolean =>
  allowedTools.every((tool) => tools.has(platformTool(tool)))

export interface PlatformSkillsOptions {
  /** Reads the skills of this machine. */
  readonly read: () => Promise<readonly SkillPackage[]>
  /** They may change while the process runs, so they are read for each use. */
  readonly live: boolean
  /** Its runners say which tools there are; without it there are none. */
  readonly fleet: Pick<Fleet, 'describe'> | undefined
}

/** The platform's skills as tenants may have them: those of this machine, without those that explain tools which no runner has. */
export class PlatformSkills {
  readonly #options: PlatformSkillsOptions
  #read: Promise<readonly SkillPackage[]> | undefined
  #last: { readonly all: readonly SkillPackage[]; readonly fitting: readonly SkillPackage[] } | undefined

  constructor(options: PlatformSkillsOptions) {
    this.#options = options
  }

  /** Returns the same array for as long as nothing changed. */
  async current(): Promise<readonly SkillPackage[]> {
    const all = await this.#all()
    const tools = new Set(this.#options.fleet?.describe().flatMap((runner) => runner.tools ?? []))
    const fitting = all.filter((skill) => !explainsTools(skill) || fits(skill, tools))
    const last = this.#last
    // All of them in one order, so that as many are the same ones.
    if (
      last?.all === all &&
      fitting.every((skill) => last.fitting.includes(skill)) &&
      fitting.length === last.fitting.length
    )
      return last.fitting
    this.#last = { all, fitting }
    return fitting
  }
  /** The names of those that explain tools which a profile has. */
  async ofTools(tools: readonly string[]): Promise<string[]> {
    const has = new Set(tools)
    const explaining = (await this.current()).filter((skill) => explainsTools(skill) && skill.allowedTools.length > 0)
    return explaining.filter((skill) => fits(skill, has)).map(({ name }) => name)
  }

  #all(): Promise<readonly SkillPackage[]> {
    if (this.#options.live) return this.#options.read()
    this.#read ??= this.#options.read().catch((error: unknown) => {
      this.#read = undefined
      throw error
    })
    return this.#read
  }
}
