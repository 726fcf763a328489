import { Type } from '@sinclair/typebox'
import { Base64Secret, definePlugin, Settings } from '#kernel'
import { Kv } from '#contracts/kv'
import { Signers } from '#contracts/signing'
import { createSigner } from './signer.ts'

/** Signs and verifies requests of one plane, with its family of keys. A role lists it once for each family. Specification 5.3. */
export default definePlugin({
  name: 'signing',
  config: Settings({
    family: Type.Union([Type.Literal('chat-gateway'), Type.Literal('vfs')], {
      description: 'Which plane the keys belong to; a signature of one family never verifies in the other.',
    }),
    current: Type.Optional(Base64Secret('Signs, and verifies first. Base64 of at least 32 random bytes.')),
    previous: Type.Optional(Base64Secret('Still verifies while keys are being rotated.')),
  }),
  requires: { kv: Kv },
  provides: { signers: Signers },
  async setup({ config, deps, log }) {
    const { family, current, previous } = config
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
    return { signers: { [family]: signer } }
  },
})
