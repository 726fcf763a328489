import { Type } from '@sinclair/typebox'
import { vfsService } from '#contracts/auth'
import { secretOf, type Secrets } from '#contracts/secrets'
import { signedHeaders, type Signer } from '#contracts/signing'
import { vfsErrors } from '#contracts/vfs'
import type { Route } from '#contracts/wire/route'
import { createPeers, signedBy } from '#kit'

const resolve = {
  method: 'POST',
  path: '/internal/secrets/resolve',
  access: vfsService,
  tags: ['secrets'],
  summary: 'Resolve a secret',
  body: Type.Object({ ref: Type.String() }),
  reply: { status: 200, json: Type.Object({ value: Type.String() }) },
} as const satisfies Route

/** Resolves the secrets of tenants to which mounts refer. */
export interface MountSecrets {
  /** The value of `secret://name`; `mount_unavailable` (503) when it cannot be resolved. */
  resolve(tenantId: string, reference: string): Promise<string>
  close(): Promise<void>
}

/** Resolves secrets with the conductor in this process, or with another conductor over signed requests. Without either, no secret can be resolved. */
export function createSecrets(
  local: Secrets | undefined,
  conductorUrl: string | undefined,
  signer: Signer,
): MountSecrets {
  if (local) {
    return {
      resolve: async (tenantId, reference) =>
        (await local.resolve(tenantId, secretOf(reference) ?? '', 'vfs').catch(refused(reference))).value,
      close: async () => {},
    }
  }
  if (!conductorUrl) return { resolve: async (_, reference) => refused(reference)(undefined), close: async () => {} }
  const peers = createPeers({
    connectMs: 2_000,
    timeoutMs: 10_000,
    links: false,
    identity: signedBy(signer, signedHeaders.tenant),
    faults: {
      lost: ({ cause }) =>
        vfsErrors.mountUnavailable({
          message: 'The conductor, which has the secrets, cannot be reached.',
          retryable: true,
          cause,
        }),
      failed: () =>
        vfsErrors.mountUnavailable({ message: 'The conductor, which has the secrets, answered something else.' }),
    },
  })
  const conductor = peers.at(conductorUrl)
  return {
    async resolve(tenant, ref) {
      const answer = await conductor.ask(resolve, { tenant, body: { ref } }).catch(refused(ref))
      return answer.value
    },
    close: () => peers.close(),
  }
}

const refused =
  (reference: string) =>
  (cause: unknown): never => {
    if ((cause as { code?: unknown } | undefined)?.code === vfsErrors.mountUnavailable.row.code) throw cause
    throw vfsErrors.mountUnavailable({
      message: `The mount refers to ${reference}, which cannot be resolved for this tenant.`,
      cause,
    })
  }
