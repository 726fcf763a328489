import assert from 'node:assert/strict'
import { test } from 'node:test'
import { inputOf } from '../calls.ts'
import { Evaluator } from '../evaluator.ts'
import { expressionProblem, mentionedIn, type Scope } from '../expressions.ts'

const evaluator = new Evaluator()
const scopeOf = (input: unknown): Scope => ({ json: { input: JSON.stringify(input) }, nodes: [] })
// Loops over a list, not over ranges: ranges count towards the allocation limit, which a busy machine would reach before the time limit.
const slow =
  '{% for i in input.list %}{% for j in input.list %}{% for k in input.list %}{% endfor %}{% endfor %}{% endfor %}'
const list = Array.from({ length: 1_000 }, (_, i) => i)

test('templates that are slow on purpose hold up nobody but their tenant, and are refused once for their node', async (t) => {
  const order: string[] = []
  let turns = 0
  const counting = setInterval(() => turns++, 0)
  t.after(() => clearInterval(counting))
  const hostile = [1, 2, 3].map(() =>
    evaluator
      .render('acme', { prompt: Array.from({ length: 1_000 }, () => slow) }, scopeOf({ list }))
      .catch((error: Error) => {
        assert.match(error.message, /longer than 100 ms/)
        order.push('acme')
      }),
  )
  const honest = evaluator
    .render('globex', { prompt: 'Hi {{ input.name }}' }, scopeOf({ name: 'x' }))
    .then(({ prompt }) => {
      assert.equal(prompt, '"Hi x"')
      order.push('globex')
    })
  await Promise.all([...hostile, honest])
  assert.equal(order.length, 4)
  assert.ok(order.indexOf('globex') <= 1, order.join())
  // This thread had its turns meanwhile.
  assert.ok(turns > 10)
})

test('what would make more than 10 MiB is refused before it is made', async () => {
  const input = { text: 'x'.repeat(1_000_000), list: [1, 2] }
  const render = (template: unknown) => evaluator.render('acme', { template }, scopeOf(input))
  const much = /10 MiB|memory/
  await assert.rejects(render('{% for i in (1..100) %}{{ input.text }}{% endfor %}'), much)
  await assert.rejects(
    render('{% capture x %}{% for i in (1..100) %}{{ input.text }}{% endfor %}{% endcapture %}{{ x.size }}'),
    much,
  )
  await assert.rejects(render(Array.from({ length: 20 }, () => '{{ input.text }}')), much)
  await assert.rejects(
    evaluator.holds(
      'acme',
      `(${Array.from({ length: 100 }, () => 'input.text').join('+')}).contains("y")`,
      scopeOf(input),
    ),
    /too much/,
  )
  // The thread is as good as before.
  assert.deepEqual(await render('{{ input.list }}'), { template: '[1,2]' })
  assert.equal(
    await evaluator.holds('acme', 'input.list[0] + 1 == 2 && {"a": {"b": 1}}.a.b == 1', scopeOf(input)),
    true,
  )
})

test('a text becomes JSON in the thread, and one that grows beyond 10 MiB is none', async () => {
  const long = 'x'.repeat(100_000)
  const cases: [text: string, mayBeJson: boolean, json: string][] = [
    ['{ "a": 1 }', true, '{"a":1}'],
    ['{ "a": 1 }', false, '"{ \\"a\\": 1 }"'],
    ['no JSON', true, '"no JSON"'],
    [long, false, `"${long}"`],
  ]
  for (const [text, mayBeJson, json] of cases) assert.equal(await evaluator.json('acme', text, mayBeJson), json)
  // Each of these characters becomes six.
  const text = '\u0001'.repeat(2 * 1024 * 1024)
  assert.equal(await evaluator.json('acme', text, false), undefined)
})

test('what templates made is parsed only if it has no more parts than a body, and of a list only what a run may have', async () => {
  const json = `[${'[],'.repeat(300_000)}[]]`
  const scope = { json: { input: json }, nodes: [] }
  const tool = { id: 'a', type: 'tool', tool: 'x', arguments: { list: '{{ input }}' } } as const
  await assert.rejects(inputOf(evaluator, 'acme', tool, scope), /more than 200000 values and names/)
  // One long text is one value, whatever is in it.
  const text = { json: { input: JSON.stringify(json) }, nodes: [] }
  assert.deepEqual(await inputOf(evaluator, 'acme', tool, text), { list: json })
  assert.deepEqual(await evaluator.list('acme', '{{ input }}', scope, 2), ['[]', '[]', '[]'])
  assert.deepEqual(await evaluator.list('acme', '{{ input }}', scopeOf([1, 2]), 2), ['1', '2'])
})

test('what is only parsed takes a time that grows with its length, however it is written', () => {
  const many = 50_000
  assert.match(expressionProblem({ text: `{{${' '.repeat(many)}`, isCondition: true }) ?? '', /./)
  assert.match(expressionProblem({ text: '{{'.repeat(many), isCondition: true }) ?? '', /./)
  // An id has 64 characters at most: a longer name is none that could be looked up.
  const mentioned = mentionedIn(`{{ nodes.${'a-'.repeat(many)} }}`)
  assert.ok(mentioned.length <= 33 && mentioned.every((id) => id.length <= 64))
})
