import { invalidField, notFound } from '#kernel'
import type { Caller } from '#contracts/auth'
import { billingErrors, type BillingEvent, type BillingProvider } from '#contracts/billing'
import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import { microcentsPerCent } from '#contracts/prices'
import { Turns } from '#kit/turns'
import { type Ledger, microcents } from './ledger.ts'
import type { CheckoutView, CorrectionBody, GrantBody, Pack, WalletView } from './schema.ts'

interface WalletDeps {
  readonly ledger: Ledger
  readonly limits?: Pick<TenantLimits, 'stored'> | undefined
  readonly provider: BillingProvider | undefined
  /** The name of the payment provider. */
  readonly name: string
  readonly currency: string
  readonly packs: readonly Pack[]
  readonly publicUrl: string | undefined
}

/** The latest time that a grant may expire, in milliseconds since the epoch. PostgreSQL cannot read years with more than four digits. */
const mostTime = Date.UTC(10_000)
/** The bytes of a requested payment with its index entry. */
const bytesOfCheckout = 300
/** Granted credit is spent before paid credit. */
const grantPriority = 50

interface Outcome {
  readonly reference: string
  readonly written: boolean
  readonly balanceCents: number
}

/** Credit of tenants: payments, grants and corrections. */
export class Wallet {
  readonly #deps: WalletDeps
  /** The provider limits the requests of this server for all tenants together. The requests of one tenant therefore take turns. */
  readonly #asking = new Turns()

  constructor(deps: WalletDeps) {
    this.#deps = deps
  }

  async show(tenantId: string): Promise<WalletView> {
    const { ledger, currency, packs } = this.#deps
    const { account, credits } = await ledger.credits(tenantId)
    return {
      registered: account !== undefined,
      balanceCents: (account?.balance ?? 0) / microcentsPerCent,
      heldCents: (account?.held ?? 0) / microcentsPerCent,
      currency,
      packs: [...packs],
      credits: credits.map(({ remaining, ...credit }) => ({
        ...credit,
        remainingCents: remaining / microcentsPerCent,
      })),
    }
  }
  /** `origin`: the origin under which the caller reached this server. */
  async checkout(caller: Caller, cents: number, origin: string): Promise<{ url: string }> {
    return this.#asking.take(caller.tenantId, () => this.#checkout(caller, cents, origin))
  }
  async #checkout({ tenantId, keyId }: Caller, cents: number, origin: string): Promise<{ url: string }> {
    const { ledger, limits, packs, currency, name, publicUrl } = this.#deps
    const pack = packs.find((one) => one.cents === cents)
    if (!pack) {
      const all = packs.map((one) => one.cents).join(', ')
      throw billingErrors.unknownPack({ message: `body/cents must be one of the packs of the wallet: ${all}.` })
    }
    limits?.stored.admit(tenantId)
    const id = newId('chk')
    await ledger.openCheckout(tenantId, { id, provider: name, cents, createdBy: keyId })
    limits?.stored.add(tenantId, bytesOfCheckout)
    const customer = (await ledger.account(tenantId))?.customers[name]
    const asked = {
      id,
      tenantId,
      cents,
      currency,
      label: pack.label,
      price: pack.price,
      customer,
      origin: publicUrl ?? origin,
    }
    const made = await this.#provider().checkout(asked)
    if (made.customer !== undefined && made.customer !== customer)
      await ledger.keepCustomer(tenantId, name, made.customer)
    return { url: made.url }
  }
  /** Resolves to the URL of the provider's customer page. 404 if the provider has no such page or does not know the tenant yet. */
  async portal(tenantId: string, origin: string): Promise<{ url: string }> {
    const { ledger, name, publicUrl } = this.#deps
    const provider = this.#provider()
    const customer = (await ledger.account(tenantId))?.customers[name]
    if (!provider.portal || customer === undefined) {
      throw notFound({ message: 'The billing provider has no page about this tenant.' })
    }
    const page = (): Promise<string> => provider.portal!(customer, publicUrl ?? origin)
    return { url: await this.#asking.take(tenantId, page) }
  }
  async payment(tenantId: string, id: string): Promise<CheckoutView> {
    const found = await this.#deps.ledger.checkout(tenantId, id)
    if (!found) throw notFound()
    return found
  }
  /** Credits a payment that an operator has confirmed. Repeating the confirmation changes nothing. */
  async confirm(tenantId: string, id: string): Promise<CheckoutView> {
    const { cents } = await this.payment(tenantId, id)
    await this.#deps.ledger.paid(tenantId, id, { cents, reference: id })
    return this.payment(tenantId, id)
  }
  async grant({
    tenantId,
    cents,
    expiresAt,
    priority = grantPriority,
    reason,
    reference,
  }: GrantBody): Promise<Outcome> {
    // Times are stored in UTC, because PostgreSQL cannot read every time zone that a request may use.
    const until = expiresAt === undefined ? undefined : new Date(expiresAt)
    if (until && !(until.getTime() > Date.now() && until.getTime() < mostTime))
      throw invalidField('body/expiresAt', 'must be a time in the future')
    await this.#known(tenantId)
    const credit = {
      cents,
      kind: 'grant' as const,
      reference: reference ?? newId('grt'),
      priority,
      ...(until ? { expiresAt: until.toISOString() } : {}),
      ...(reason === undefined ? {} : { note: reason }),
    }
    return this.#told(tenantId, credit.reference, await this.#deps.ledger.credit(tenantId, credit))
  }
  async correct({
    tenantId,
    cents,
    kind = 'correction',
    reason: note,
    reference = newId('cor'),
  }: CorrectionBody): Promise<Outcome> {
    const { ledger } = this.#deps
    if (Math.abs(cents) < 0.000001 || (kind === 'refund' && cents > 0))
      throw invalidField(
        'body/cents',
        kind === 'refund' ? 'must be below 0: a refund takes credit back' : 'must not be 0',
      )
    await this.#known(tenantId)
    const written =
      kind === 'correction' && cents > 0
        ? await ledger.credit(tenantId, { cents, kind, reference, note })
        : await ledger.debit(tenantId, { cents: -cents, kind, reference, note })
    return this.#told(tenantId, reference, written)
  }
  /** Handles an event of a payment provider. Resolves to false if the event was handled before or concerns no tenant of this server. */
  async take(provider: string, event: BillingEvent): Promise<boolean> {
    const { ledger } = this.#deps
    const { tenantId } = event
    if (!(await ledger.knows(tenantId))) return false
    if (event.kind === 'disputed') {
      const cents = (await this.#bought(event)) / microcentsPerCent
      return ledger.dispute(tenantId, cents, `${provider}:${event.reference}`, event.won)
    }
    if (event.kind === 'expired') await ledger.expireCheckout(tenantId, event.checkoutId)
    else if (event.kind === 'refunded')
      await ledger.refund(tenantId, await this.#bought(event), `${provider}:${event.reference}`)
    else {
      const paid = { cents: event.cents, reference: `${provider}:${event.reference}` }
      return ledger.paid(tenantId, event.checkoutId, paid)
    }
    return true
  }

  /**
   * The microcents of credit that a part of a payment bought. It is the same fraction of the pack as of the payment, so taxes and rebates do not
   * matter.
   */
  async #bought({ tenantId, checkoutId, cents, of }: Extract<BillingEvent, { readonly of: number }>): Promise<number> {
    const pack = (await this.#deps.ledger.checkout(tenantId, checkoutId))?.cents ?? of
    return of > 0 ? microcents((pack * cents) / of) : 0
  }
  #provider(): BillingProvider {
    const { provider } = this.#deps
    if (!provider) throw billingErrors.billingNotConfigured()
    return provider
  }
  async #known(tenantId: string): Promise<void> {
    if (!(await this.#deps.ledger.knows(tenantId))) throw notFound({ message: 'No tenant has this id.' })
  }
  async #told(tenantId: string, reference: string, written: boolean): Promise<Outcome> {
    const account = await this.#deps.ledger.account(tenantId)
    return { reference, written, balanceCents: (account?.balance ?? 0) / microcentsPerCent }
  }
}
