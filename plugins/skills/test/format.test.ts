import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { isSkillName, readSkill } from '../format.ts'
import { platformTool } from '../platform.ts'

const read = (text: string, folder?: string) => {
  const findings = { problems: [] as string[], forgiven: [] as string[] }
  const found = readSkill(text, folder, findings)
  return { ...findings, ...found }
}
const skill = (front: string, body = '# Body\n'): string => `---\n${front}\n---\n${body}`
const minimal = 'name: pdf\ndescription: Reads PDF files.'

test('the six fields are read as they are, and a rule in the body is no fence', () => {
  const { header, body, problems, forgiven } = read(
    skill(
      'name: pdf-forms\ndescription: >\n  Fills forms.\n  Use it for PDF.\nlicense: Apache-2.0\ncompatibility: needs poppler\nallowed-tools: Bash(git add:*) Read\nmetadata:\n  author: acme\n  version: 1.0',
      'One.\n\n---\n\nTwo.\n',
    ),
    'pdf-forms',
  )
  assert.deepEqual([problems, forgiven], [[], []])
  assert.deepEqual(header, {
    name: 'pdf-forms',
    description: 'Fills forms. Use it for PDF.',
    license: 'Apache-2.0',
    compatibility: 'needs poppler',
    allowedTools: ['Bash(git add:*)', 'Read'],
    metadata: { author: 'acme', version: '1.0' },
  })
  assert.equal(body, 'One.\n\n---\n\nTwo.\n')
})

test('names are lower-case letters and digits of any script, with single hyphens inside', () => {
  for (const name of ['a', 'pdf', 'pdf-2', '技能', 'мой-навык', 'compétence', 'x'.repeat(64)])
    assert.ok(isSkillName(name), name)
  for (const name of [
    '',
    '-a',
    'a-',
    'a--b',
    'A',
    'a_b',
    'a b',
    'a.b',
    '../a',
    'a/b',
    'ﬁ',
    'x'.repeat(65),
    'a\0',
    'Навык',
  ])
    assert.ok(!isSkillName(name), name)
})

test('what is almost right is read as it was meant, and said', () => {
  const cases: [string, RegExp][] = [
    [`\uFEFF${skill(minimal)}`, /byte order mark/],
    [`\n\n${skill(minimal)}`, /blank space before/],
    [skill('name: pdf\ndescription: Use when: a PDF comes'), /colon and was not quoted/],
    [skill('description: Reads PDF files.'), /'name' is missing; the folder's name 'pdf'/],
    [skill('name: PDF\ndescription: d'), /'PDF' was read as 'pdf'/],
    [skill(`${minimal}\nversion: 2`), /The format has no field 'version'/],
    [skill(`${minimal}\nallowedTools: Read`), /'allowedTools' was read as 'allowed-tools'/],
    [skill(`${minimal}\nallowed-tools: [Read, Write]`), /is a list/],
    [skill(`${minimal}\nallowed-tools: Read, Write`), /commas/],
    [skill(`${minimal}\nmetadata:\n  tags: [a, b]`), /no text; it was kept as JSON/],
  ]
  for (const [text, said] of cases) {
    const { problems, forgiven, header } = read(text, 'pdf')
    assert.deepEqual(problems, [], text)
    assert.equal(forgiven.length, 1, text)
    assert.match(forgiven[0]!, said)
    assert.equal(header?.name, 'pdf')
  }
  assert.match(read(skill(minimal), 'other').forgiven[0]!, /folder is called 'other' and the skill 'pdf'/)
  assert.deepEqual(read(skill(minimal).replaceAll('\n', '\r\n'), 'pdf').header, read(skill(minimal), 'pdf').header)
})

test('everything that nobody can guess is a problem, all at once', () => {
  const cases: [string, RegExp[]][] = [
    ['# No front matter', [/no front matter/]],
    ['---\nname: a\n', [/does not end/]],
    [skill('- a\n- b'), [/no mapping/]],
    [skill('name: [a'), [/no YAML/]],
    [skill('a: &x 1\nb: *x'), [/alias/]],
    [skill('name: a\nname: b\ndescription: d'), [/no YAML/]],
    [skill('license: MIT'), [/'description' is missing/, /'name' is missing/]],
    [
      skill(`name: a--b\ndescription: ${'d'.repeat(1_025)}\ncompatibility: ${'c'.repeat(501)}`),
      [/1024/, /500/, /'a--b' is invalid/],
    ],
    [
      skill('name: a\ndescription:\n  nested: text\nmetadata: text'),
      [/'description' has to be text/, /missing/, /'metadata'/],
    ],
    [skill(`name: a\ndescription: "x\u{E0041}\u{E0042}"`), [/U\+E0041/]],
    [skill('name: a\ndescription: d', 'good\u202Elive'), [/body of SKILL.md holds U\+202E/]],
    [skill('name: a\ndescription: d', 'nul\0'), [/U\+0000/]],
  ]
  for (const [text, said] of cases) {
    const { problems, header } = read(text)
    assert.equal(header, undefined, text)
    for (const one of said)
      assert.ok(
        problems.some((problem) => one.test(problem)),
        `${String(one)}: ${problems.join(' ')}`,
      )
  }
})

test('no text makes the reader throw, and what it accepts has a name', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), fc.string(), (front, body) => {
      const { header, problems } = read(skill(front, body), 'pdf')
      if (header) assert.ok(isSkillName(header.name))
      else assert.ok(problems.length > 0)
    }),
    { numRuns: 300 },
  )
})

test('tools are known by the names that authors give them', () => {
  assert.deepEqual(['Bash(git:*)', 'Read', 'calculate', 'mcp__a__b', 'Toaster'].map(platformTool), [
    'shell',
    'read_file',
    'calculate',
    'mcp__a__b',
    'Toaster',
  ])
})
