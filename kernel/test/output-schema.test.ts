import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createOutputSchemas } from '#contracts/output-schema'

test('a value that fits has no problem, and one that does not is told where and why', () => {
  const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }
  const { problem } = createOutputSchemas()(schema)
  assert.equal(problem({ n: 1 }), undefined)
  assert.equal(problem({ n: 'one' }), '/n must be integer.')
  assert.equal(problem({}), "The value must have required property 'n'.")
})

test('the two drafts differ where they do', () => {
  const schemas = createOutputSchemas()
  const tuple = { prefixItems: [{ type: 'string' }] }
  assert.ok(schemas(tuple).problem([1]))
  assert.equal(schemas({ ...tuple, $schema: 'http://json-schema.org/draft-07/schema#' }).problem([1]), undefined)
})

test('a pattern that is slow on purpose is given up, and the next check works', () => {
  const schemas = createOutputSchemas()
  const { problem } = schemas({ type: 'string', pattern: '^(a+)+$' })
  assert.equal(problem(`${'a'.repeat(40)}b`), 'It could not be checked in time.')
  assert.equal(problem('aaa'), undefined)
})

test('schemas that refer to themselves, or to what is not there, and ids that were used before', () => {
  const schemas = createOutputSchemas()
  const tree = { $id: 'https://x.test/tree', properties: { next: { $ref: '#' } }, additionalProperties: false }
  assert.equal(schemas(tree).problem({ next: { next: {} } }), undefined)
  assert.ok(schemas(tree).problem({ next: { other: 1 } }))
  assert.equal(schemas({ $id: 'https://x.test/tree', type: 'string' }).problem('x'), undefined)
  assert.throws(() => schemas({ $ref: 'https://x.test/tree' }), { code: 'invalid_response_format', status: 400 })
  assert.throws(() => schemas({ $ref: '#/nowhere' }), { code: 'invalid_response_format' })
})

test('code in a schema stays text', () => {
  const schemas = createOutputSchemas()
  const evil = "'];globalThis.polluted=1;//"
  const { problem } = schemas({ properties: { [evil]: { const: evil } }, required: [evil] })
  assert.equal(problem({ [evil]: evil }), undefined)
  assert.ok(problem({}))
  assert.equal((globalThis as Record<string, unknown>)['polluted'], undefined)
})
