import type { Database } from '#contracts/database'
import { isProfileName, type Profiles } from '#contracts/profiles'
import { unknownMemory, unknownProfile } from '../errors.ts'
import type { Metrics } from '../metrics.ts'
import type { CreateMemory, Hit, Memory } from '../schema.ts'
import type { Question, Search } from '../search/search.ts'
import { findMemory, hasMemories, removeMemory } from './reads.ts'
import type { Created, Writer } from './write.ts'

export interface BankParts {
  readonly database: Database
  readonly profiles: Profiles
  readonly writer: Writer
  readonly search: Search
  readonly metrics: Metrics
}

/** The memories of all profiles: what routes, tools and first messages use. */
export class MemoryBank {
  readonly #parts: BankParts

  constructor(parts: BankParts) {
    this.#parts = parts
  }

  /** 404 for an unknown profile. `ofRun`: the agent of the run writes that `input` names. */
  async create(tenantId: string, profile: string, input: CreateMemory, ofRun = false): Promise<Created> {
    if (!(await this.#exists(tenantId, profile))) throw unknownProfile()
    return this.#parts.writer.create(tenantId, profile, input, { ofRun })
  }
  /** The best hits first. */
  search(caller: 'api' | 'tool', tenantId: string, profile: string, question: Question): Promise<Hit[]> {
    return this.#parts.metrics.searched(caller, () => this.ask(tenantId, profile, question))
  }
  ask(tenantId: string, profile: string, question: Question): Promise<Hit[]> {
    return this.#parts.search.ask(tenantId, profile, question)
  }
  /** 404 for a memory that the profile does not have. */
  find(tenantId: string, profile: string, id: string): Promise<Memory> {
    return findMemory(this.#parts.database, tenantId, profile, id)
  }
  /** With `history`, deletes the memories of the same person that it superseded as well. Resolves to the number of deleted memories. */
  remove(tenantId: string, profile: string, id: string, history = false): Promise<number> {
    return removeMemory(this.#parts.database, tenantId, profile, id, history)
  }
  unknown(): Error {
    return unknownMemory()
  }
  /** Rejects with 404 for a profile that does not exist and has no memories left. */
  async known(tenantId: string, profile: string): Promise<void> {
    if (!isProfileName(profile)) throw unknownProfile()
    if (await this.#exists(tenantId, profile)) return
    if (!(await hasMemories(this.#parts.database, tenantId, profile))) throw unknownProfile()
  }

  async #exists(tenantId: string, profile: string): Promise<boolean> {
    if (!isProfileName(profile)) return false
    const { profiles } = this.#parts
    // The cached value may be old, so it must not refuse anybody.
    return (
      (await profiles.findPlaced(tenantId, profile)) !== undefined ||
      (await profiles.find(tenantId, profile)) !== undefined
    )
  }
}
