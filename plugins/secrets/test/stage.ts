import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { Database } from '#contracts/database'
import { Secrets } from '#contracts/secrets'
import { Signers } from '#contracts/signing'
import { operatedConductor, type TestBody } from '#testing'

export const randomKey = (): string => randomBytes(32).toString('base64')

/** The master key of a stage where none is given. */
export const masterKey = randomKey()

/** The conductor as an operator runs it, with a master key. */
export async function stage(t: TestContext, variables: Record<string, string> = {}) {
  const { parts, operator, ...rest } = await operatedConductor(t, {
    needs: { database: Database, secrets: Secrets, signers: Signers },
    variables: { AGENT_ORC_MASTER_KEY: masterKey, ...variables },
  })
  const { kernel } = rest
  const { signers } = parts
  /** Resolves over the signed plane, as `tenant`; the headers are those of a signature of `family` unless given. */
  const resolve = async (
    ref: unknown,
    { tenant = 'default', family = 'vfs', headers }: { tenant?: string; family?: string; headers?: object } = {},
  ) => {
    const [url, payload] = ['/internal/secrets/resolve', JSON.stringify({ ref })]
    const asked = { tenant, method: 'POST', target: url, body: Buffer.from(payload) }
    const reply = await kernel.listeners['internal']!.inject({
      method: 'POST',
      url,
      headers: { 'content-type': 'application/json', ...(headers ?? signers.get(family)!.sign(asked)) },
      payload,
    })
    return { status: reply.statusCode, headers: reply.headers, body: reply.json<TestBody>() }
  }
  return { ...rest, ...parts, owner: operator, resolve }
}
