import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { definePlugin, isAppError } from '#kernel'
import { type SandboxEventDecoder, SandboxEventDecoders } from '#contracts/sandbox'
import { testKernel } from '#testing'
import events from '../events.ts'

const secret = 'secret-for-event-signature-verification'

async function decoderOf(t: TestContext, config: Record<string, unknown>): Promise<SandboxEventDecoder> {
  const found: SandboxEventDecoder[] = []
  const grab = definePlugin({
    name: 'grab',
    requires: { decoders: SandboxEventDecoders },
    async setup({ deps }) {
      found.push(deps.decoders.get('e2b')!)
      return {}
    },
  })
  await testKernel(t, [{ name: 'sandbox-e2b-events', plugin: events, config }, grab], { listeners: [] })
  return found[0]!
}

/** As E2B documents a delivery. */
const delivery = (fields: object = {}): Buffer =>
  Buffer.from(
    JSON.stringify({
      version: 'v1',
      id: 'f5911677-cb60-498f-afed-f68143b3cc59',
      type: 'sandbox.lifecycle.killed',
      eventData: { sandbox_metadata: { 'agent-orc-tenant': 'acme — é' } },
      sandboxBuildId: 'b1',
      sandboxExecutionId: 'e1',
      sandboxId: 'ihcxnx6xv5kgwtb2pfz9t',
      sandboxTeamId: 't1',
      sandboxTemplateId: 'agent-orc-worker',
      timestamp: '2025-08-06T20:59:24Z',
      ...fields,
    }),
  )
/** As E2B's documentation computes it. */
const sign = (body: Buffer): string =>
  createHash('sha256')
    .update(secret + body.toString('utf8'))
    .digest('base64')
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '')
const refusedWith = (status: number) => (error: unknown) => isAppError(error) && error.status === status

test('a signed event of each kind names its sandbox', async (t) => {
  const { decode } = await decoderOf(t, { secret })
  for (const kind of ['created', 'updated', 'killed', 'paused', 'resumed']) {
    const body = delivery({ type: `sandbox.lifecycle.${kind}` })
    assert.deepEqual(decode({ headers: { 'e2b-signature': sign(body) }, body }), { sandboxId: 'ihcxnx6xv5kgwtb2pfz9t' })
  }
})

test('a signature that is missing, of another secret, of other bytes or in another form is 401', async (t) => {
  const { decode } = await decoderOf(t, { secret })
  const body = delivery()
  const right = sign(body)
  const padded = `${right}=`
  const wrong = [undefined, '', 'x', padded, right.slice(1), right.toUpperCase(), [right, right], 'é'.repeat(43)]
  for (const signature of wrong) {
    assert.throws(() => decode({ headers: { 'e2b-signature': signature }, body }), refusedWith(401), String(signature))
  }
  const spaced = Buffer.from(` ${body.toString('utf8')}`)
  assert.throws(() => decode({ headers: { 'e2b-signature': right }, body: spaced }), refusedWith(401))
  assert.throws(() => decode({ headers: {}, body: Buffer.from('{"torn') }), refusedWith(401))
})

test('without a secret nothing is asked of the signature', async (t) => {
  const { decode } = await decoderOf(t, {})
  assert.deepEqual(decode({ headers: {}, body: delivery() }), { sandboxId: 'ihcxnx6xv5kgwtb2pfz9t' })
})

test('what is about no sandbox is ignored, and what cannot be read is 400', async (t) => {
  const { decode } = await decoderOf(t, {})
  const read = (body: Buffer) => decode({ headers: {}, body })
  assert.equal(read(delivery({ type: 'template.build.finished' })), undefined)
  for (const sandboxId of ['', '../x', 'x'.repeat(129)]) assert.equal(read(delivery({ sandboxId })), undefined)
  for (const text of ['[]', 'null', '"text"', '{}', '{"type":7}', '{"type":"x","sandboxId":{}}']) {
    assert.equal(read(Buffer.from(text)), undefined, text)
  }
  const unreadable = ['', '{"torn', '\xff']
  for (const text of unreadable) assert.throws(() => read(Buffer.from(text, 'latin1')), refusedWith(400), text)
  assert.throws(() => read(Buffer.from('['.repeat(64 * 1024))), refusedWith(400))
})
