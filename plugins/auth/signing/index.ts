import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, Settings } from '#kernel'
import { Kv } from '#contracts/kv'
import { Signers } from '#contracts/signing'
import { type Proof, proofsOf } from '#kit'
import { createSigner } from './signer.ts'

/** Signs and verifies the requests of one family of keys. A role lists this plugin once for each family. Specification 5.3. */
export default definePlugin({
  name: 'signing',
  config: Settings({
    family: Type.Union([Type.Literal('chat-gateway'), Type.Literal('vfs'), Type.Literal('runner')], {
      description: 'Which plane the keys belong to; a signature of one family never verifies in the other.',
    }),
    current: Type.Optional(
      Base64Secret('Signs, and is tried first when verifying. Base64 of at least 32 random bytes.'),
    ),
    previous: Type.Optional(Base64Secret('Still verifies while keys are being rotated.')),
    listeners: Type.Array(Type.String(), {
      default: [],
      description:
        'Listeners that require a signature of this family, except for /healthz, once a key is set. For the family `runner`.',
    }),
  }),
  guards: ({ current, listeners }) => (current ? listeners : []),
  requires: { kv: Kv },
  provides: { signers: Signers },
  async setup({ config, deps, log, routes }) {
    const { family, current, previous, listeners } = config
    if (family !== 'runner' && listeners.length > 0) {
      throw new Error(
        `requests of the family ${family} cannot be demanded of a whole listener; that is for the family runner`,
      )
    }
    if (!current) {
      if (previous)
        throw new Error(`the ${family} family has a previous signing key but no current one; set the current one`)
      return { signers: {} }
    }
    const signer = createSigner({
      family,
      current,
      ...(previous ? { previous } : {}),
      kv: deps.kv,
      onRefused: (reason, keyId) => log.warn({ family, keyId, reason }, 'signature_invalid'),
    })
    const proof: Proof = async (request) => {
      const { headers, method = '', url: target = '' } = request
      return signer.verifyHead(headers, { method, target })
    }
    for (const listener of listeners) routes(listener, async (app) => proofsOf(app).demand(proof))
    return { signers: { [family]: signer } }
  },
})
