import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createNames } from '../tools/toolset.ts'

test('a name says server and tool where that is clear, and is cut and hashed where it is not', () => {
  const nameOf = createNames([])
  assert.equal(nameOf('github', 'create_issue'), 'mcp__github__create_issue')
  assert.match(nameOf('github', 'créer une issue'), /^mcp__github__cr_er_une_issue_[0-9a-f]{8}$/)
  const long = nameOf('s'.repeat(64), 'tool')
  assert.equal(long.length, 64)
  assert.match(long, /_[0-9a-f]{8}$/)
})

test('no two tools have one name, whatever their servers call themselves', () => {
  const taken = ['mcp__taken__x']
  const nameOf = createNames(taken)
  const pairs = [
    ['a', 'b__c'],
    ['a__b', 'c'],
    ['a_', 'b'],
    ['a', '_b'],
    ['taken', 'x'],
    ['a', 'x!'],
    ['a', 'x?'],
    ['s'.repeat(64), 'tool 1'],
    ['s'.repeat(64), 'tool 2'],
  ] as const
  const names = pairs.map(([server, tool]) => nameOf(server, tool))
  assert.equal(new Set([...names, ...taken]).size, names.length + 1)
  assert.ok(names.every((name) => /^[A-Za-z0-9_-]{1,64}$/.test(name)))
  const again = createNames(taken)
  assert.deepEqual(
    pairs.map(([server, tool]) => again(server, tool)),
    names,
    'the next run finds the same ones',
  )
})
