import type { TenantList } from '#kernel'
import type { SandboxProvider } from '#contracts/sandbox'
import { sandboxErrors } from './errors.ts'

export interface Substrate {
  readonly name: string
  readonly provider: SandboxProvider
}

/** The sandbox providers that this runner offers. */
export interface Substrates {
  /** The names in alphabetical order. */
  readonly names: readonly string[]
  readonly fallback: string | undefined
  all(): readonly Substrate[]
  /** The provider that the profile names, or else the default among those that the tenant may use. Throws AppError 503 `no_sandbox_substrate`. */
  choose(tenantId: string, provider: string | undefined): Substrate
}

interface SubstrateSettings {
  readonly configured: ReadonlyMap<string, SandboxProvider>
  /** The tenants that may use each provider. */
  readonly tenants: ReadonlyMap<string, TenantList>
  /** The providers to offer; empty for all that are configured. */
  readonly offered: readonly string[]
  /** Preferred defaults. The first one that is offered is used. */
  readonly byDefault: readonly string[]
}

/** Throws for a provider that this runner does not have, so that the operator learns of it at boot. */
export function createSubstrates({ configured, tenants, offered, byDefault }: SubstrateSettings): Substrates {
  const names = [...new Set(offered.length > 0 ? offered : configured.keys())].toSorted()
  const missing = names.filter((name) => !configured.has(name))
  if (missing.length > 0) {
    throw new Error(
      `AGENT_ORC_SANDBOX_PROVIDERS names ${missing.join(', ')}, which this runner does not have, this machine cannot do, or no tenant may use; it has ${listed([...configured.keys()])}`,
    )
  }
  const first = byDefault.find((name) => names.includes(name))
  // Several names are preferences, so some may be missing. A single name must be offered.
  if (byDefault.length === 1 && first === undefined) {
    throw new Error(
      `AGENT_ORC_SANDBOX_DEFAULT is ${byDefault[0]}, which this runner does not offer; it offers ${listed(names)}`,
    )
  }
  const fallback = first ?? (names.length === 1 ? names[0] : undefined)
  return {
    names,
    fallback,
    all: () => names.map((name) => ({ name, provider: configured.get(name)! })),
    choose(tenantId, named) {
      // A provider that the tenant may not use does not exist for it.
      const mine = names.filter((name) => tenants.get(name)?.allows(tenantId))
      const wanted = named ?? byDefault.find((name) => mine.includes(name)) ?? (mine.length === 1 ? mine[0] : undefined)
      if (wanted === undefined) {
        const message =
          mine.length === 0
            ? 'This runner has no sandboxes for this tenant.'
            : `This runner has no default sandbox provider; name one as sandbox.provider: ${mine.join(', ')}.`
        throw sandboxErrors.noSandboxSubstrate({ message })
      }
      const provider = mine.includes(wanted) ? configured.get(wanted) : undefined
      if (!provider) {
        throw sandboxErrors.noSandboxSubstrate({
          message: `This runner has no sandbox provider '${wanted}' for this tenant; it has ${listed(mine)}.`,
        })
      }
      return { name: wanted, provider }
    },
  }
}

const listed = (names: readonly string[]): string => (names.length === 0 ? 'none' : names.join(', '))
