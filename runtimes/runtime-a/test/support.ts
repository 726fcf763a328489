import { test, type TestContext } from 'node:test'
import {
  type EnvelopeFields,
  type ModelRequestBody,
  type ModelServer,
  type ModelServerOptions,
  runtimeOf,
  startModelServer,
} from '#testing'
import type { Runtime } from '#contracts/runtime'
import runtimeA from '../index.ts'
import { vendorPackage } from '../sdk.ts'

/** Declares tests that need the vendor's package. Without it there is one instead, which says so. */
export function withVendor(declare: () => void): void {
  const { missing } = vendorPackage()
  if (missing === undefined) return declare()
  test('runtime_a with its vendor', (t) => {
    // Set by `npm run test:runtimes`, which has just installed it.
    if (process.env['AGENT_ORC_VENDOR_RUNTIMES'] === 'required') throw new Error(missing)
    t.skip(missing)
  })
}

export const model: EnvelopeFields = { profile: { runtime: 'runtime_a', model: 'anthropic/stand-in' } }

/** The runtime as a role has it, on this address. */
export const runtimeAt = (t: Pick<TestContext, 'after'>, baseUrl: string): Promise<Runtime> =>
  runtimeOf(t, 'runtime_a', [{ name: 'runtime-a', plugin: runtimeA, config: { apiKey: 'sk-canary-of-ours', baseUrl } }])

export async function onStandIn(
  t: Pick<TestContext, 'after'>,
  options: ModelServerOptions = {},
): Promise<{ runtime: Runtime; server: ModelServer }> {
  const server = await startModelServer(t, options)
  return { server, runtime: await runtimeAt(t, server.url) }
}

interface Block {
  readonly type: string
  readonly text?: string
}
const blocksOf = (content: unknown): readonly Block[] =>
  typeof content === 'string' ? [{ type: 'text', text: content }] : (content as readonly Block[])

/** What users have said in the conversation that a model server is sent. */
export const saidIn = (body: ModelRequestBody): string[] =>
  body.messages
    .filter(({ role }) => role === 'user')
    .flatMap(({ content }) => blocksOf(content))
    .flatMap(({ type, text }) => (type === 'text' && text !== undefined ? [text] : []))

/** The whole conversation as `role: text` lines. */
export const conversation = (body: ModelRequestBody): string[] =>
  body.messages.map(
    ({ role, content }) =>
      `${role}: ${blocksOf(content)
        .map(({ type, text }) => text ?? `[${type}]`)
        .join(' ')}`,
  )
