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

/** The memories of all profiles. Routes, tools and first messages use this class. */
export class MemoryBank {
  readonly #parts: BankParts

  constructor(parts: BankParts) {
    this.#parts = parts
  }

  /**
   * Stores a memory. 404 for an unknown profile. `ofRun`: the agent of the run that `input` names writes it, so nothing is stored for an end user
   * who was erased since that run began.
   */
  async create(tenantId: string, profile: string, input: CreateMemory, ofRun = false): Promise<Created> {
    if (!(await this.#exists(tenantId, profile))) throw unknownProfile()
    return this.#parts.writer.create(tenantId, profile, input, { ofRun })
  }
  /** Answers a question with the profile's memories, best hits first. */
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
  /** Deletes a memory, and with `history` also the memories of the same person that it superseded. Resolves to the number of deleted memories. */
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
    // The cached profile may be outdated, so the database is asked before a caller is refused.
    return (
      (await profiles.findPlaced(tenantId, profile)) !== undefined ||
      (await profiles.find(tenantId, profile)) !== undefined
    )
  }
}
