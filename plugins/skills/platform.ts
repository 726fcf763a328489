import type { Fleet } from '#contracts/runner'
import type { SkillPackage } from './package.ts'

/** Names that authors of skills use for tools which the platform calls differently. */
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

/** The platform's name of a tool in `allowed-tools`, without a pattern such as in `Bash(git:*)`. An unknown name is returned unchanged. */
export function platformTool(given: string): string {
  const bare = given.replace(/\(.*\)$/s, '')
  return others.get(bare) ?? bare
}

/** True for a skill that explains tools. It is useless without these tools. */
const explainsTools = ({ name }: SkillPackage): boolean => name.startsWith('using-')
const fits = ({ allowedTools }: SkillPackage, tools: ReadonlySet<string>): boolean =>
  allowedTools.every((tool) => tools.has(platformTool(tool)))

export interface PlatformSkillsOptions {
  /** Reads the skills of this machine. */
  readonly read: () => Promise<readonly SkillPackage[]>
  /** True when the skills may change while the process runs. Then they are read for each use. */
  readonly live: boolean
  /** The runners, which announce the available tools. Undefined means that there are no tools. */
  readonly fleet: Pick<Fleet, 'describe' | 'onLive'> | undefined
}

/** The platform's skills for tenants: those of this machine, except skills that explain tools which no runner has. */
export class PlatformSkills {
  readonly #options: PlatformSkillsOptions
  /** The tools that runners have named. */
  #tools: ReadonlySet<string> = new Set()
  #read: Promise<readonly SkillPackage[]> | undefined
  #fitting: Promise<readonly SkillPackage[]> | undefined
  readonly #listeners: (() => void)[] = []

  constructor(options: PlatformSkillsOptions) {
    this.#options = options
    const { fleet } = options
    // A runner announces its tools once in its lifetime, so it is enough to listen for new runners.
    fleet?.onLive(() => this.#learn(new Set(fleet.describe().flatMap(({ tools = [] }) => tools))))
  }

  /** Returns the same array until something changes, so callers can compare by identity. */
  current(): Promise<readonly SkillPackage[]> {
    if (this.#options.live) return this.#choose()
    this.#fitting ??= this.#choose().catch((error: unknown) => {
      this.#fitting = undefined
      throw error
    })
    return this.#fitting
  }
  /** The names of the skills that explain tools of a profile. */
  async ofTools(tools: readonly string[]): Promise<string[]> {
    const has = new Set(tools)
    const explaining = (await this.current()).filter((skill) => explainsTools(skill) && skill.allowedTools.length > 0)
    return explaining.filter((skill) => fits(skill, has)).map(({ name }) => name)
  }
  /** Registers a listener for changes of the platform's skills. */
  onOthers(listener: () => void): void {
    this.#listeners.push(listener)
  }

  #learn(tools: ReadonlySet<string>): void {
    if (tools.size === this.#tools.size && tools.isSubsetOf(this.#tools)) return
    this.#tools = tools
    this.#fitting = undefined
    for (const listener of this.#listeners) listener()
  }
  #once(): Promise<readonly SkillPackage[]> {
    this.#read ??= this.#options.read().catch((error: unknown) => {
      this.#read = undefined
      throw error
    })
    return this.#read
  }
  async #choose(): Promise<readonly SkillPackage[]> {
    const tools = this.#tools
    const all = await (this.#options.live ? this.#options.read() : this.#once())
    return all.filter((skill) => !explainsTools(skill) || fits(skill, tools))
  }
}
