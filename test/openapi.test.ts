import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Validator } from '@seriousme/openapi-schema-validator'
import { startConductor } from './conductor.ts'

interface Response {
  readonly $ref?: string
  readonly description?: string
  readonly content?: Readonly<Record<string, { readonly schema?: object }>>
}
interface Operation {
  readonly operationId?: string
  readonly tags?: readonly string[]
  readonly summary?: string
  readonly security?: readonly object[]
  readonly 'x-access'?: string
  readonly responses: Readonly<Record<string, Response>>
}
interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
}

const guarded = [
  'member',
  'admin',
  'owner',
  'operator',
  'agent-key',
  'service',
  'vfs-service',
  'worker',
  'session',
  'egress-key',
]

test('every listener has a valid OpenAPI document in which every operation says what it does and what it answers', async (t) => {
  const { app, internal, gateway, runner, workers, sidecar } = await startConductor(t)
  for (const [name, listener] of Object.entries({ conductor: app, internal, gateway, runner, workers, sidecar })) {
    const document = (await listener.inject('/openapi.json')).json<Document>()
    const { valid, errors } = await new Validator().validate(structuredClone({ ...document }))
    assert.ok(valid, `${name}: ${JSON.stringify(errors)}`)
    const problems: string[] = []
    const ids = new Set<string>()
    for (const [path, operations] of Object.entries(document.paths)) {
      for (const [method, operation] of Object.entries(operations)) {
        const wrong = wrongWith(operation, isRefused(method, path))
        if (ids.has(operation.operationId!)) wrong.push('another operation has its operationId')
        ids.add(operation.operationId!)
        problems.push(...wrong.map((what) => `${name} ${method.toUpperCase()} ${path}: ${what}`))
      }
    }
    assert.deepEqual(problems, [])
    assert.ok(ids.size > 3)
  }
})

/** An MCP endpoint keeps no streams and no sessions, and the protocol wants that said. */
const isRefused = (method: string, path: string): boolean => method !== 'post' && path.startsWith('/mcp/')

function wrongWith(
  { operationId, tags, summary, security, 'x-access': who, responses }: Operation,
  refused: boolean,
): string[] {
  const wrong: string[] = []
  const expect = (holds: unknown, what: string): void => void (holds || wrong.push(what))
  expect(operationId && /^[a-z][A-Za-z0-9]+$/.test(operationId), 'no operationId that can be a name')
  expect(tags?.length === 1, 'not exactly one tag')
  expect(summary && summary.length <= 60 && !summary.endsWith('.'), 'no short summary without a full stop')
  expect(guarded.includes(who!) === (security !== undefined), `x-access ${who} and security disagree`)
  const successes = Object.keys(responses).filter((status) => status.startsWith('2'))
  expect(successes.length > 0 !== refused, refused ? 'a documented success' : 'no documented success')
  expect(responses['4XX'] && responses['503'], 'errors are not documented')
  for (const [status, { $ref, description, content }] of Object.entries(responses)) {
    expect($ref ?? (description && description !== 'Default Response'), `${status} has no description`)
    if ($ref !== undefined || description === undefined) continue
    const empty = ['204', '303', '304'].includes(status) || (status === '202' && content === undefined)
    const forms = Object.values(content ?? {})
    expect(empty ? forms.length === 0 : forms.length > 0, `${status} has ${empty ? 'a' : 'no'} body`)
    expect(
      forms.every(({ schema }) => schema !== undefined),
      `${status} has a body without a schema`,
    )
  }
  return wrong
}
