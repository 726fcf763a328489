import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, invalidRequest, negotiated, notFound, stream, Type } from '#kernel'
import { type Guard, operator } from '#contracts/auth'
import { billingErrors } from '#contracts/billing'
import { limitErrors } from '#contracts/limits'
import { type Listing, pageHeaders } from '#contracts/paging'
import { webhookErrors } from '#contracts/webhooks'
import { sendList } from '#kit/lists'
import type { Budgets } from './budgets.ts'
import type { Ledger } from './ledger.ts'
import {
  BudgetsBody,
  BudgetsView,
  CheckoutBody,
  CheckoutParams,
  CheckoutView,
  CorrectionBody,
  GrantBody,
  LedgerEntry,
  LedgerQuery,
  Link,
  MonthParams,
  Posted,
  Statement,
  WalletView,
} from './schema.ts'
import type { Wallet } from './wallet.ts'

const tags = ['billing']
const { billingNotConfigured, providerFailed, unknownPack } = billingErrors
const operators = 'For admins of the tenant AGENT_ORC_ADMIN_TENANT; 404 to everybody else.'
const originOf = ({ protocol, host }: FastifyRequest): string => `${protocol}://${host}`

/** Routes with which a tenant sees its credit and buys more. Specification 4.10. */
export function walletRoutes(app: App, guard: Guard, wallet: Wallet): void {
  app.get(
    '/api/billing/wallet',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Show the credit of this tenant',
        description: 'Includes the packs that can be bought.',
        response: { 200: WalletView, ...failures(billingNotConfigured) },
      },
    },
    async (request) => wallet.show(guard.callerOf(request).tenantId),
  )
  app.post(
    '/api/billing/checkout',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Buy credit',
        description: 'Answers the URL of a payment page. The credit is available after the payment.',
        body: CheckoutBody,
        response: {
          200: Link,
          ...failures(unknownPack, providerFailed, billingNotConfigured, limitErrors.limitExceeded),
        },
      },
    },
    async (request) => wallet.checkout(guard.callerOf(request), request.body.cents, originOf(request)),
  )
  app.post(
    '/api/billing/portal',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Get a link to the page of the billing provider',
        description:
          'A page with payments and invoices. 404 before the first checkout, and if the provider has no such page.',
        response: { 200: Link, ...failures(notFound, providerFailed, billingNotConfigured) },
      },
    },
    async (request) => wallet.portal(guard.callerOf(request).tenantId, originOf(request)),
  )
}

export function ledgerRoutes(app: App, guard: Guard, ledger: Ledger): void {
  app.get(
    '/api/billing/ledger',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List the entries of the ledger',
        description:
          'Newest first; nothing is ever changed. Every transfer is two entries that add up to 0. `Accept: text/csv` answers the same as CSV.',
        querystring: LedgerQuery,
        response: {
          200: negotiated('Entries.', { 'application/json': Type.Array(LedgerEntry), 'text/csv': Type.String() }),
          ...failures(billingNotConfigured),
        },
      },
    },
    async (request, reply) => {
      const { account, kind, runId, ...page } = request.query
      const filter = {
        ...page,
        ...(account === undefined ? {} : { account }),
        ...(kind === undefined ? {} : { kind }),
        ...(runId === undefined ? {} : { runId }),
      }
      const entries = await ledger.entries(guard.callerOf(request).tenantId, filter)
      if (!wantsCsv(request)) return sendList(request, reply, entries, { page, item: LedgerEntry })
      void reply.headers(pageHeaders(request.url, page, entries))
      return sendCsv(request, reply, entries)
    },
  )
  app.get(
    '/api/billing/statements/:month',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Read the statement of a month',
        params: MonthParams,
        response: { 200: Statement, ...failures(invalidRequest, billingNotConfigured) },
      },
    },
    async (request) => ledger.statement(guard.callerOf(request).tenantId, request.params.month),
  )
}

export function budgetRoutes(app: App, guard: Guard, budgets: Budgets): void {
  app.get(
    '/api/billing/budgets',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List budgets and their use',
        response: { 200: BudgetsView, ...failures(billingNotConfigured) },
      },
    },
    async (request) => ({ budgets: await budgets.list(guard.callerOf(request).tenantId) }),
  )
  app.put(
    '/api/billing/budgets',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace all budgets',
        description:
          'Each has a cap for a scope and a period. A budget that stays keeps what was spent. A raised cap applies at once, also to running runs; a new budget applies to runs that start from now on.',
        body: BudgetsBody,
        response: {
          200: BudgetsView,
          ...failures(webhookErrors.invalidWebhook, limitErrors.limitExceeded, billingNotConfigured),
        },
      },
    },
    async (request) => ({ budgets: await budgets.replace(guard.callerOf(request).tenantId, request.body.budgets) }),
  )
}

interface OperatorParts {
  readonly wallet: Wallet
  /** True if operators confirm payments by hand. */
  readonly manual: boolean
}

/** Routes with which operators manage the credit of tenants. */
export function operatorRoutes(app: App, { wallet, manual }: OperatorParts): void {
  app.post(
    '/api/billing/grants',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Give a tenant credit',
        description: operators,
        body: GrantBody,
        response: { 201: Posted, ...failures(invalidRequest, notFound, billingNotConfigured) },
      },
    },
    async (request, reply) => reply.code(201).send(await wallet.grant(request.body)),
  )
  app.post(
    '/api/billing/corrections',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Correct what a tenant was charged, or note a refund',
        description: `${operators} Adds an entry; existing entries are never changed.`,
        body: CorrectionBody,
        response: { 201: Posted, ...failures(invalidRequest, notFound, billingNotConfigured) },
      },
    },
    async (request, reply) => reply.code(201).send(await wallet.correct(request.body)),
  )
  app.get(
    '/api/billing/checkouts/:tenantId/:id',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Show a requested payment',
        description: operators,
        params: CheckoutParams,
        response: { 200: CheckoutView, ...failures(notFound, billingNotConfigured) },
      },
    },
    async ({ params }) => wallet.payment(params.tenantId, params.id),
  )
  app.post(
    '/api/billing/checkouts/:tenantId/:id/confirm',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Confirm that a payment has arrived',
        description: `${operators} Only for the provider \`ledger\`: other providers report payments themselves. A second confirmation changes nothing.`,
        params: CheckoutParams,
        response: { 200: CheckoutView, ...failures(notFound, billingNotConfigured) },
      },
    },
    async ({ params }) => {
      if (!manual) throw notFound({ message: 'The billing provider confirms payments itself.' })
      return wallet.confirm(params.tenantId, params.id)
    },
  )
}

const columns = [
  'id',
  'at',
  'account',
  'amountCents',
  'kind',
  'reference',
  'runId',
  'profile',
  'note',
  'prices',
  'unpriced',
] as const

const wantsCsv = (request: FastifyRequest): boolean => /(^|,)\s*text\/csv\b/.test(request.headers.accept ?? '')

/** Formats one CSV cell as RFC 4180 says. Text that a spreadsheet would evaluate as a formula is escaped. */
function cell(value: LedgerEntry[(typeof columns)[number]]): string {
  if (value === null) return ''
  const text = typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value)
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}
const lineOf = (entry: LedgerEntry): string => `${columns.map((column) => cell(entry[column])).join(',')}\r\n`

async function sendCsv(
  request: FastifyRequest,
  reply: FastifyReply,
  { items, rest }: Pick<Listing<LedgerEntry>, 'items' | 'rest'>,
): Promise<FastifyReply> {
  await stream(request, reply, { contentType: 'text/csv; charset=utf-8' }, async function* () {
    yield `${columns.join(',')}\r\n${items.map(lineOf).join('')}`
    if (rest) for await (const more of rest) yield more.map(lineOf).join('')
  })
  return reply
}
