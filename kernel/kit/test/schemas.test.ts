import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { createOutputSchemas } from '#kit/schemas'

type Schema = Readonly<Record<string, unknown>>

const schemas = createOutputSchemas()
const problem = async (schema: Schema, value: unknown) => (await schemas('acme', schema)).problem(value)
/** Takes far longer to compile than this thread's turn; `seed` makes it another schema. */
const heavy = (seed: number, ways = 200): Schema => ({
  oneOf: Array.from({ length: ways }, (_, i) => ({ minimum: seed + i })),
})

test('a value that fits has no problem, and one that does not is told where and why', async () => {
  const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }
  assert.equal(await problem(schema, { n: 1 }), undefined)
  assert.equal(await problem(schema, { n: 'one' }), '/n must be integer.')
  assert.equal(await problem(schema, {}), "The value must have required property 'n'.")
})

test('the two drafts differ where they do', async () => {
  const tuple = { prefixItems: [{ type: 'string' }] }
  assert.ok(await problem(tuple, [1]))
  assert.equal(await problem({ ...tuple, $schema: 'http://json-schema.org/draft-07/schema#' }, [1]), undefined)
})

test('a pattern that is slow on purpose is given up, and the next check works', async () => {
  const slow = { type: 'string', pattern: '^(a+)+$' }
  assert.equal(await problem(slow, `${'a'.repeat(40)}b`), 'It could not be checked in time.')
  assert.equal(await problem(slow, 'aaa'), undefined)
})

test('schemas that refer to themselves, or to what is not there, and ids that were used before', async () => {
  const tree = { $id: 'https://x.test/tree', properties: { next: { $ref: '#' } }, additionalProperties: false }
  assert.equal(await problem(tree, { next: { next: {} } }), undefined)
  assert.ok(await problem(tree, { next: { other: 1 } }))
  assert.equal(await problem({ $id: 'https://x.test/tree', type: 'string' }, 'x'), undefined)
  const refused = { code: 'invalid_response_format', status: 400 }
  await assert.rejects(schemas('acme', { $ref: 'https://x.test/tree' }), refused)
  await assert.rejects(schemas('acme', { $ref: '#/nowhere' }), refused)
  await assert.rejects(schemas('acme', { type: 'nothing' }), refused)
  await assert.rejects(schemas('acme', { description: 'x'.repeat(70_000) }), refused)
})

test('code in a schema stays text', async () => {
  const evil = "'];globalThis.polluted=1;//"
  const schema = { properties: { [evil]: { const: evil } }, required: [evil] }
  assert.equal(await problem(schema, { [evil]: evil }), undefined)
  assert.ok(await problem(schema, {}))
  assert.equal((globalThis as Record<string, unknown>)['polluted'], undefined)
})

test('while a schema is compiled this thread goes on; asked for again it costs nothing', async () => {
  let turns = 0
  let compiling = true
  const compiled = schemas('acme', heavy(0)).finally(() => (compiling = false))
  for (; compiling; turns++) await turn()
  assert.ok(turns > 10, `${turns} turns`)
  assert.equal(schemas('acme', heavy(0)), schemas('acme', heavy(0)))
  await compiled
})

test('tenants take turns, and one that asks for too much at once is told so', async () => {
  const order: string[] = []
  const asked = (tenant: string, seed: number): Promise<unknown> =>
    schemas(tenant, heavy(seed, 50)).then(
      () => order.push(tenant),
      ({ code }: { code?: string }) => order.push(`${tenant} ${code}`),
    )
  const many = Array.from({ length: 19 }, (_, i) => asked('hostile', 1_000 * (i + 1)))
  await Promise.all([...many, asked('victim', 7)])
  // One is under way, sixteen wait, two are refused at once; the victim waits for the one under way and for one more.
  assert.deepEqual(order.slice(0, 2), ['hostile too_many_schemas', 'hostile too_many_schemas'])
  assert.ok(order.indexOf('victim') <= 4, order.join())
  assert.equal(order.length, 20)
  // A refusal of that kind is not remembered.
  await schemas('hostile', heavy(19_000, 50))
})

test('a value of a megabyte is checked, a longer one is not', async () => {
  const numbers = Array.from({ length: 500_000 }, () => 1)
  assert.equal(await problem({ items: { type: 'integer' } }, numbers), undefined)
  assert.match((await problem({ type: 'array' }, [...numbers, ...numbers]))!, /more than 1048576 characters/)
})
