import { createHash, timingSafeEqual } from 'node:crypto'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { definePlugin, errorTable, Settings } from '#kernel'
import { type SandboxDelivery, SandboxEventDecoders } from '#contracts/sandbox'

const e2bEventErrors = errorTable('sandbox-e2b-events', {
  unreadableEvent: { status: 400, message: 'This is not a delivery of E2B.' },
  signatureInvalid: { status: 401, message: 'The signature of this delivery is missing or wrong.' },
})

/** A delivery as E2B documents it, reduced to the fields that are read here. */
const Delivery = Type.Object({
  type: Type.String(),
  sandboxId: Type.Optional(Type.String()),
})

const sandboxIdForm = /^[A-Za-z0-9_-]{1,128}$/

/** Reads E2B's lifecycle webhooks about sandboxes. Runs in the conductor. */
export default definePlugin({
  name: 'sandbox-e2b-events',
  config: Settings({
    secret: Type.Optional(
      Type.String({
        description: 'E2B_WEBHOOK_SECRET: the `signatureSecret` of the webhook. Without it unsigned ones are accepted.',
      }),
    ),
  }),
  errors: e2bEventErrors,
  provides: { decoders: SandboxEventDecoders },
  async setup({ config: { secret } }) {
    return {
      decoders: {
        e2b: {
          decode(delivery) {
            if (secret && !isSigned(delivery, secret)) throw e2bEventErrors.signatureInvalid()
            const { type = '', sandboxId } = parse(delivery.body) ?? {}
            if (!type.startsWith('sandbox.lifecycle.')) return undefined
            return sandboxId !== undefined && sandboxIdForm.test(sandboxId) ? { sandboxId } : undefined
          },
        },
      },
    }
  },
})

/** Checks E2B's own form of signature: a digest of secret and bytes, in base64url without padding. */
function isSigned({ headers, body }: SandboxDelivery, secret: string): boolean {
  const given = headers['e2b-signature']
  if (typeof given !== 'string') return false
  const expected = createHash('sha256').update(secret).update(body).digest('base64url')
  // Compare digests, because a comparison in constant time needs equal lengths.
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(given), digest(expected))
}

/** Undefined: readable, but not about a sandbox of E2B. Specification 4.9: such a delivery is ignored. */
function parse(body: Buffer): Static<typeof Delivery> | undefined {
  try {
    const value: unknown = JSON.parse(body.toString('utf8'))
    return Value.Check(Delivery, value) ? value : undefined
  } catch (cause) {
    throw e2bEventErrors.unreadableEvent({ cause })
  }
}
