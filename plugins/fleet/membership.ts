import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { access, type App, failures } from '#kernel'
import { fleetErrors } from '#contracts/run-errors'
import type { FleetMember, RunnerLink } from '#contracts/runner'
import type { RunnerFleet } from './fleet.ts'
import type { Member } from './member.ts'
import { checkRunnerUrl } from './remote-runner.ts'
import { memberState, orNull } from './topology.ts'

/** A runner with what only operators may see of it. */
interface RunnerAddress {
  /** Empty for the runner of this process. */
  readonly url: string
  readonly hash: string
  readonly state: FleetMember['state']
}

/** Changes the runners of this conductor process. Other conductors must be told separately. Specification 4.14. */
export interface Membership {
  /** Adds the runners behind these URLs, or those of RUNNER_URLS, and asks known runners again. It never removes a runner. */
  reconcile(urls?: readonly string[]): Promise<readonly (RunnerAddress & { readonly added: boolean })[]>
  /** Gives the runner no new sessions. Undefined for an unknown hash. */
  drain(hash: string): RunnerAddress | undefined
  undrain(hash: string): RunnerAddress | undefined
  /** `unroutableSessions`: how many sessions the runner still had. Null: not measured. */
  remove(hash: string): Promise<(RunnerAddress & { readonly unroutableSessions: number | null }) | undefined>
}

interface MembershipOptions {
  readonly fleet: RunnerFleet
  /** The URLs of RUNNER_URLS. */
  readonly configured: readonly string[]
  readonly connect: (url: string) => RunnerLink
}

export function createMembership({ fleet, configured, connect }: MembershipOptions): Membership {
  const full = ({ url, link, state }: Member) => ({ url, hash: link.hash, state })
  const drain = (hash: string, on: boolean) => {
    const member = fleet.find(hash)
    if (!member) return undefined
    for (const each of fleet.allOf(hash)) each.drain(on)
    return full(member)
  }
  return {
    async reconcile(urls = configured) {
      const checked = [...new Set(urls.map(checkRunnerUrl))]
      const touched = checked.map((url) => {
        const present = fleet.at(url)
        return { member: present ?? fleet.add(connect(url), url), added: !present }
      })
      await Promise.all(touched.map(({ member, added }) => (added ? member.start() : member.probe())))
      return touched.map(({ member, added }) => ({ ...full(member), added }))
    },
    drain: (hash) => drain(hash, true),
    undrain: (hash) => drain(hash, false),
    async remove(hash) {
      const member = fleet.find(hash)
      if (!member) return undefined
      await member.probe()
      const { activeSessions } = member.describe()
      for (const each of fleet.allOf(hash)) fleet.remove(each)
      return { ...full(member), unroutableSessions: activeSessions }
    },
  }
}

const address = {
  url: Type.String({ description: 'Empty for a runner in the process of the conductor.' }),
  hash: Type.String(),
  state: memberState,
}
const Address = Type.Object(address)
const HashBody = Type.Object(
  { hash: Type.String({ pattern: '^[0-9a-f]{8}$', description: 'As `GET /api/topology` shows it.' }) },
  { additionalProperties: false },
)
const ReconcileBody = Type.Object(
  {
    urls: Type.Optional(
      Type.Array(Type.String({ minLength: 1, maxLength: 2_048 }), {
        minItems: 1,
        maxItems: 1_000,
        description: 'Base URLs of runners; those of RUNNER_URLS by default.',
      }),
    ),
  },
  { additionalProperties: false },
)
const Reconciled = Type.Object({
  runners: Type.Array(Type.Object({ ...address, added: Type.Boolean({ description: 'It was not known before.' }) })),
})
const Removed = Type.Object({
  ...address,
  unroutableSessions: orNull(
    Type.Integer(),
    'Sessions that it still had. Each continues on another live runner with its last saved conversation; without another runner it cannot be reached.',
  ),
})

const tags = ['topology']

/** Changes of the fleet, on the signed listener. They apply to this process only, so call each conductor. Specification 4.14. */
export function membershipRoutes(app: App, membership: Membership, log: FastifyBaseLogger): void {
  const changed = <T extends RunnerAddress>(runner: T | undefined, said: string): T => {
    if (!runner) throw fleetErrors.notFound()
    log.info<RunnerAddress, string>(runner, said)
    return runner
  }
  app.post(
    '/internal/topology/reconcile',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Add runners and probe them',
        description:
          'With no body, those of RUNNER_URLS. None is removed. One that answers again may be given sessions at once. Answers ' +
          'when each was probed; 400 for an invalid URL, or one with credentials, a query or a fragment.',
        body: ReconcileBody,
        response: { 200: Reconciled },
      },
      preValidation: async (request) => void (request.body ??= {}),
    },
    async (request) => {
      const runners = await membership.reconcile(request.body.urls)
      log.info({ runners }, 'runners were reconciled')
      return { runners: [...runners] }
    },
  )
  app.post(
    '/internal/topology/drain',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Give a runner no new sessions',
        description: 'Its sessions continue. 404 `not_found` for an unknown hash.',
        body: HashBody,
        response: { 200: Address, ...failures(fleetErrors.notFound) },
      },
    },
    async (request) => changed(membership.drain(request.body.hash), 'a runner is drained'),
  )
  app.post(
    '/internal/topology/undrain',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Give a drained runner sessions again',
        description: '404 `not_found` for an unknown hash.',
        body: HashBody,
        response: { 200: Address, ...failures(fleetErrors.notFound) },
      },
    },
    async (request) => changed(membership.undrain(request.body.hash), 'a runner is drained no longer'),
  )
  app.post(
    '/internal/topology/remove',
    {
      ...access('service'),
      schema: {
        tags,
        summary: 'Forget a runner',
        description:
          'Drain it first and wait until it has no sessions. 404 `not_found` for an unknown hash. A later reconcile with its URL adds it again.',
        body: HashBody,
        response: { 200: Removed, ...failures(fleetErrors.notFound) },
      },
    },
    async (request) => changed(await membership.remove(request.body.hash), 'a runner was removed'),
  )
}
