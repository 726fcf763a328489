import { Type } from '@sinclair/typebox'
import type { Profile } from '#contracts/profiles'
import type { Sandbox } from './sandbox.ts'
import { type BindRequest, createWarmPool, type PoolSettings, type WarmPoolDeps } from './warm-pool.ts'

const entry = '[^/=,\\s]+/[A-Za-z0-9][A-Za-z0-9_.-]{0,63}=[1-9]\\d{0,2}'

/** `acme/coder=2, acme/writer=1`: a list for the plugin; empty when absent. */
export const WarmPoolList = Type.Transform(
  Type.String({
    default: '',
    pattern: `^\\s*(${entry}\\s*(,\\s*${entry}\\s*)*)?$`,
    expects: 'pairs such as acme/coder=2, a tenant and a profile each, with commas between them',
    description: 'Prepared workers by tenant/profile, e.g. acme/coder=2. Each holds memory while it waits.',
  }),
)
  .Decode((text): PoolSettings[] =>
    text
      .split(',')
      .map((part) => /^(.+)\/(.+)=(\d+)$/.exec(part.trim()))
      .filter((match) => match !== null)
      .map(([, tenant, profile, size]) => ({ tenant: tenant!, profile: profile!, size: Number(size) })),
  )
  .Encode((pools) => pools.map(({ tenant, profile, size }) => `${tenant}/${profile}=${size}`).join(','))

/** The warm pools of a runner. */
export interface WarmPools {
  /** A prepared worker that now is the session's. Undefined: there is none. */
  take(request: BindRequest): Promise<Sandbox | undefined>
  follow(tenantId: string, name: string, profile: Profile | undefined): void
  /** From now on sandboxes may be launched. */
  open(): void
  look(): Promise<void>
  /** How many workers wait. */
  readonly waiting: number
}

export function createWarmPools(settings: readonly PoolSettings[], deps: WarmPoolDeps): WarmPools {
  const keyOf = (tenantId: string, name: string): string => `${tenantId}/${name}`
  const pools = new Map(settings.map((one) => [keyOf(one.tenant, one.profile), createWarmPool(one, deps)] as const))
  /** Profiles that came before the runner could be called back. */
  const early = new Map<string, Profile | undefined>()
  let isOpen = false
  return {
    take: async (request) => pools.get(keyOf(request.tenantId, request.profile.name))?.take(request),
    follow(tenantId, name, profile) {
      const key = keyOf(tenantId, name)
      if (isOpen) pools.get(key)?.follow(profile)
      else if (pools.has(key)) early.set(key, profile)
    },
    open() {
      isOpen = true
      for (const [key, profile] of early) pools.get(key)!.follow(profile)
      early.clear()
    },
    async look() {
      if (isOpen) await Promise.all([...pools.values()].map((pool) => pool.look()))
    },
    get waiting() {
      return [...pools.values()].reduce((sum, pool) => sum + pool.size, 0)
    },
  }
}
