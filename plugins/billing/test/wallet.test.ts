import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isAppError } from '#kernel'
import type { Caller } from '#contracts/auth'
import { overLimit } from '#contracts/limits'
import { testRole } from '#testing'
import { Wallet as Wallets } from '../wallet.ts'
import { stage } from './stage.ts'

interface Wallet {
  readonly registered: boolean
  readonly balanceCents: number
  readonly packs: { cents: number }[]
}

test('without billing its routes are 503 in development; anywhere else the server does not start', async (t) => {
  const { operator } = await stage(t, { AGENT_ORC_BILLING: '' })
  for (const [method, url, body] of [
    ['GET', '/api/billing/wallet'],
    ['POST', '/api/billing/checkout', { cents: 500 }],
    ['GET', '/api/billing/ledger'],
    ['GET', '/api/billing/budgets'],
  ] as const) {
    const { statusCode, json } = await operator(method, url, body)
    assert.deepEqual([statusCode, json<{ error: string }>().error], [503, 'billing_not_configured'], url)
  }
  const start = (variables: Record<string, string>) =>
    testRole(t, 'conductor', [], { RUNNER_URLS: 'http://127.0.0.1:1', ...variables })
  await assert.rejects(start({ AGENT_ORC_ENV: 'prod' }), /AGENT_ORC_ENV is 'prod'.*AGENT_ORC_BILLING/s)
  await assert.rejects(start({ AGENT_ORC_BILLING: 'stripe' }), /'stripe', which is not configured; these are: ledger/)
  await start({ AGENT_ORC_ENV: 'prod', AGENT_ORC_BILLING: 'ledger' })
})

test('a tenant buys a pack, an operator confirms it once, and nothing else costs or gives credit', async (t) => {
  const { operator, other, withRole } = await stage(t)
  const acme = await other('initech')
  const before = (await acme('GET', '/api/billing/wallet')).json<Wallet>()
  assert.deepEqual([before.registered, before.balanceCents, before.packs[0]!.cents], [false, 0, 500])
  for (const cents of [0, 1, 499, -500, 501]) {
    const { statusCode, json } = await acme('POST', '/api/billing/checkout', { cents })
    assert.deepEqual([statusCode, json<{ error: string }>().error], [400, 'unknown_pack'])
  }
  for (const body of [{}, { cents: '500' }, { cents: 500.5 }, { cents: null }, [500]]) {
    assert.equal((await acme('POST', '/api/billing/checkout', body)).statusCode, 400, JSON.stringify(body))
  }
  const publish = async () => {
    await acme('POST', '/api/profiles', { name: 'writer', runtime: 'general', model: 'builtin/echo' })
    return acme('POST', '/api/profiles/writer/publish', {})
  }
  const pending = await publish()
  assert.deepEqual(
    [pending.statusCode, pending.json<object>()],
    [402, { ...pending.json<object>(), error: 'registration_pending', checkout_path: '/api/billing/checkout' }],
  )
  const asked = await acme('POST', '/api/billing/checkout', { cents: 500 })
  assert.equal(asked.statusCode, 200)
  const { pathname } = new URL(asked.json<{ url: string }>().url)
  assert.equal((await publish()).json<{ error: string }>().error, 'credits_exhausted')
  // A tenant does not confirm its own payment.
  assert.equal((await acme('POST', `${pathname}/confirm`)).statusCode, 404)
  assert.equal((await acme('GET', pathname)).statusCode, 404)
  assert.equal((await operator('GET', pathname)).json<{ state: string }>().state, 'open')
  const confirmed = await Promise.all(Array.from({ length: 10 }, () => operator('POST', `${pathname}/confirm`)))
  assert.deepEqual(new Set(confirmed.map((one) => one.json<{ state: string }>().state)), new Set(['paid']))
  const wallet = (await acme('GET', '/api/billing/wallet')).json<Wallet>()
  assert.deepEqual([wallet.registered, wallet.balanceCents], [true, 500])
  assert.equal((await publish()).statusCode, 201)

  const member = await withRole(acme, 'member')
  for (const [method, url, body] of [
    ['GET', '/api/billing/wallet'],
    ['POST', '/api/billing/checkout', { cents: 500 }],
    ['GET', '/api/billing/ledger'],
    ['PUT', '/api/billing/budgets', { budgets: [] }],
  ] as const) {
    assert.equal((await member(method, url, body)).statusCode, 403, url)
  }
  assert.equal((await operator('POST', '/api/billing/checkouts/initech/chk_none/confirm')).statusCode, 404)
})

test('operators give and correct credit, each reference once; to anybody else the routes are not there', async (t) => {
  const { operator, other, callerWith, keyOf } = await stage(t)
  const key = await keyOf('initech')
  const acme = callerWith(key)
  const globex = await other('hooli')
  const grant = { tenantId: 'initech', cents: 250.5, reference: 'welcome', reason: 'Hello' }
  assert.equal((await acme('POST', '/api/billing/grants', grant)).statusCode, 404)
  const given = [
    await operator('POST', '/api/billing/grants', grant),
    await operator('POST', '/api/billing/grants', grant),
  ]
  assert.deepEqual(
    given.map((one) => [one.statusCode, one.json<{ written: boolean; balanceCents: number }>().written]),
    [
      [201, true],
      [201, false],
    ],
  )
  for (const [body, status] of [
    [{ tenantId: 'nobody', cents: 1 }, 404],
    [{ tenantId: 'initech', cents: 0 }, 400],
    [{ tenantId: 'initech', cents: 1, expiresAt: '2020-01-01T00:00:00Z' }, 400],
    [{ tenantId: 'initech', cents: 1, expiresAt: 'soon' }, 400],
    [{ tenantId: 'initech', cents: 1, expiresAt: '9999-12-31T23:59:59-12:00' }, 400],
    [{ tenantId: 'initech', cents: 1, reference: 'a b' }, 400],
    [{ tenantId: 'initech', cents: 1e300 }, 400],
    [{ tenantId: 'initech', cents: 1e-7 }, 400],
    [{ tenantId: 'a\0b', cents: 1 }, 400],
    [{ tenantId: 'initech', cents: 1, reason: 'a\0b' }, 400],
  ] as const) {
    assert.equal((await operator('POST', '/api/billing/grants', body)).statusCode, status, JSON.stringify(body))
  }
  const correct = (body: object) =>
    operator('POST', '/api/billing/corrections', { tenantId: 'initech', reason: '=1+1, "so"', ...body })
  assert.equal((await correct({ cents: 0 })).statusCode, 400)
  assert.equal((await correct({ cents: 5, kind: 'refund' })).statusCode, 400)
  assert.equal((await correct({ cents: -50 })).json<{ balanceCents: number }>().balanceCents, 200.5)
  assert.equal((await correct({ cents: 0.5 })).json<{ balanceCents: number }>().balanceCents, 201)

  for (const query of ['runId=%00', 'kind=%00', 'account=a%00', 'cursor=%00', 'limit=0'])
    assert.equal((await acme('GET', `/api/billing/ledger?${query}`)).statusCode, 400, query)
  const zoned = { tenantId: 'hooli', cents: 1, expiresAt: '2099-01-01T00:00:00+20:00' }
  assert.equal((await operator('POST', '/api/billing/grants', zoned)).statusCode, 201)
  const [credit] = (await globex('GET', '/api/billing/wallet')).json<{ credits: { expiresAt: string }[] }>().credits
  assert.equal(credit!.expiresAt, '2098-12-31T04:00:00.000Z')

  // The ledger, in pages and as CSV: no other tenant sees a line of it.
  const page = await acme('GET', '/api/billing/ledger?limit=4&account=credit')
  const entries = page.json<{ kind: string; amountCents: number }[]>()
  assert.deepEqual(
    entries.map(({ kind, amountCents }) => [kind, amountCents]),
    [
      ['correction', 0.5],
      ['correction', -50],
      ['grant', 250.5],
    ],
  )
  assert.equal((await acme('GET', '/api/billing/ledger?limit=2')).headers['x-total-count'], '6')
  assert.equal((await globex('GET', '/api/billing/ledger')).json<object[]>().length, 2, 'their own')
  const csv = await callerWith(key, { accept: 'text/csv' })('GET', '/api/billing/ledger?account=credit')
  assert.match(String(csv.headers['content-type']), /^text\/csv/)
  const [head, first] = csv.body.split('\r\n')
  assert.equal(head, 'id,at,account,amountCents,kind,reference,runId,profile,note,prices,unpriced')
  assert.match(first!, /,credit,0\.5,correction,cor_[0-9a-z]+,,,"'=1\+1, ""so""",,false$/)

  const month = new Date().toISOString().slice(0, 7)
  const statement = (await acme('GET', `/api/billing/statements/${month}`)).json<object>()
  const byKind = { correction: -49.5, grant: 250.5 }
  assert.deepEqual(statement, { month, openingCents: 0, closingCents: 201, byKind, byProfile: [], final: false })
  for (const bad of ['0000-01', '2026-13', '26-01', 'now', '2026-1']) {
    assert.equal((await acme('GET', `/api/billing/statements/${bad}`)).statusCode, 400, bad)
  }
  const old = (await acme('GET', '/api/billing/statements/2020-02')).json<{ final: boolean; closingCents: number }>()
  assert.deepEqual([old.final, old.closingCents], [true, 0])
})

test('budgets are replaced as a whole, with a clear answer for each that is none', async (t) => {
  const { operator, other } = await stage(t, { AGENT_ORC_WEBHOOK_KEY: '' })
  const acme = await other('initech')
  const put = (...budgets: object[]) => acme('PUT', '/api/billing/budgets', { budgets })
  const month = { scope: 'tenant', per: 'month', capCents: 1_000 }
  const person = { scope: 'end_user', per: 'day', capCents: 10 }
  const made = (await put(month, person)).json<{ budgets: { id: string; subject: string }[] }>().budgets
  assert.deepEqual(made.map(({ subject }) => subject).toSorted(), ['', '*'])
  const again = (await put(person)).json<{ budgets: { id: string }[] }>().budgets
  assert.deepEqual(
    again.map(({ id }) => id),
    [made.find(({ subject }) => subject === '*')!.id],
    'one that stays keeps its id',
  )
  for (const bad of [
    [{ ...month, subject: 'x' }],
    [person, { ...person, subject: '*' }],
    [{ ...month, capCents: -1 }],
    [{ ...month, per: 'year' }],
    [{ ...month, scope: 'galaxy' }],
    [{ ...person, subject: '' }],
    [{ ...person, subject: 'a\0b' }],
    [{ ...month, cap: 1 }],
  ]) {
    const { statusCode, json } = await put(...bad)
    assert.deepEqual([statusCode, json<{ error: string }>().error], [400, 'invalid_request'], JSON.stringify(bad))
  }
  assert.ok((await put({ ...month, webhookUrl: 'http://127.0.0.1/x' })).statusCode >= 400)
  const many = Array.from({ length: 201 }, (_, i) => ({ ...person, subject: `p${i}` }))
  const over = await put(...many)
  assert.deepEqual([over.statusCode, over.json<{ error: string }>().error], [409, 'limit_exceeded'])
  assert.equal((await acme('GET', '/api/billing/budgets')).json<{ budgets: object[] }>().budgets.length, 1)
  assert.deepEqual((await operator('GET', '/api/billing/budgets')).json<object>(), { budgets: [] })
})

test('a tenant asks the provider for one page at a time, whatever it wants at once; another one does not wait for it', async () => {
  let open = 0
  let most = 0
  const gate = Promise.withResolvers<void>()
  const provider = {
    async checkout({ tenantId }: { tenantId: string }) {
      if (tenantId === 'globex') return { url: 'https://pay.example/globex' }
      most = Math.max(most, ++open)
      await gate.promise
      open--
      return { url: 'https://pay.example/acme' }
    },
  }
  const ledger = { openCheckout: async () => {}, account: async () => undefined }
  const packs = [{ cents: 100, label: 'one' }]
  const wallet = new Wallets({ ledger, packs, provider, name: 'fake' } as unknown as ConstructorParameters<
    typeof Wallets
  >[0])
  const buy = (tenantId: string) => wallet.checkout({ tenantId, keyId: 'k' } as Caller, 100, 'https://here')
  const all = [1, 2, 3, 4].map(() => buy('acme'))
  assert.equal((await buy('globex')).url, 'https://pay.example/globex')
  gate.resolve()
  await Promise.all(all)
  assert.equal(most, 1)
})

test('a requested payment counts for the stored bytes of its tenant, and a full tenant requests none', async () => {
  const [asked, added]: [string[], [string, number][]] = [[], []]
  const stored = {
    add: (tenantId: string, bytes: number) => void added.push([tenantId, bytes]),
    admit: (tenantId: string) => {
      if (tenantId === 'full') throw overLimit('storedBytes', 1)
    },
  }
  const ledger = { openCheckout: async (tenantId: string) => void asked.push(tenantId), account: async () => undefined }
  const provider = { checkout: async () => ({ url: 'https://pay.example' }) }
  const packs = [{ cents: 100, label: 'one' }]
  const deps = { ledger, limits: { stored }, packs, provider, name: 'fake' }
  const wallet = new Wallets(deps as unknown as ConstructorParameters<typeof Wallets>[0])
  const buy = (tenantId: string) => wallet.checkout({ tenantId, keyId: 'k' } as Caller, 100, 'https://here')
  await buy('acme')
  assert.deepEqual(added, [['acme', 300]])
  await assert.rejects(buy('full'), (error) => isAppError(error) && error.code === 'limit_exceeded')
  assert.deepEqual(asked, ['acme'])
})
