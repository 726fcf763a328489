import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
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
        wrong.push(...unwritable(operation, document))
        problems.push(...wrong.map((what) => `${name} ${method.toUpperCase()} ${path}: ${what}`))
      }
    }
    assert.deepEqual(problems, [])
    assert.ok(ids.size > 3)
  }
})

const compile = SerializerSelector()({}, {})
const compiled = new Set<string>()

/** A listener compiles the schema of an answer when it first answers with it; whether it can is found out here. */
function unwritable({ responses }: Operation, document: Document): string[] {
  return Object.entries(responses).flatMap(([status, response]) => {
    const { content = {} } = inlined(response, document) as Response
    return Object.values(content).flatMap(({ schema }) => {
      const text = JSON.stringify(schema ?? {})
      if (compiled.has(text)) return []
      compiled.add(text)
      try {
        compile({ schema: JSON.parse(text), method: 'GET', url: '/', httpStatus: status })
        return []
      } catch (error) {
        return [`the schema of ${status} does not compile: ${(error as Error).message}`]
      }
    })
  })
}

/** A part of a document with what it refers to in the place of the references. */
function inlined(part: unknown, document: Document): unknown {
  if (Array.isArray(part)) return part.map((one) => inlined(one, document))
  if (typeof part !== 'object' || part === null) return part
  const { $ref } = part as { readonly $ref?: unknown }
  if (typeof $ref !== 'string')
    return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, inlined(value, document)]))
  const found = $ref
    .split('/')
    .slice(1)
    .reduce<unknown>((at, key) => (at as Readonly<Record<string, unknown>>)[key], document)
  return inlined(found, document)
}

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
