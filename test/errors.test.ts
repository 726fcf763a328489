import assert from 'node:assert/strict'
import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import type { ErrorTable, Plugin } from '#kernel'
import { root } from '../kernel/config.ts'
import { tablesOf } from '../kernel/contracts/error-docs.ts'
import { shippedPlugins, shippedTables, subsystemOf } from '../cli/scripts/errors.ts'
import { operationsOf } from './openapi-operations.ts'
import { startConductor } from './conductor.ts'

const isTest = (file: string): boolean =>
  file.endsWith('.test.ts') || file.includes('/test/') || file.startsWith('kernel/testing/')

/** The code of every file that is shipped, without its comments. */
async function sources(): Promise<Map<string, string>> {
  const found = new Map<string, string>()
  const exclude = (name: string): boolean => name.endsWith('node_modules')
  for await (const file of glob('{kernel,plugins,runtimes,providers,cli,examples}/**/*.ts', { cwd: root, exclude })) {
    if (isTest(file) || file.startsWith('cli/scripts/')) continue
    const text = await readFile(join(root, file), 'utf8')
    found.set(file, text.replaceAll(/\/\*[^]*?\*\/|^\s*\/\/.*$/gm, ''))
  }
  assert.ok(found.size > 300)
  return found
}

const { services, runtimes } = await shippedTables()
const tables = [...services, ...runtimes]
const rowsOf = (table: ErrorTable) => Object.values(table).map(({ row }) => row)

test('errors are made from rows: nobody else makes one by its code', async () => {
  // Who owns the class, and who passes on what another server or Fastify called a failure.
  const makers = ['kernel/contracts/errors.ts', 'kernel/http/errors.ts', 'kernel/kit/peer.ts']
  const found = [...(await sources())]
    .filter(([, code]) => /\bnew AppError\(|extends AppError[^]*?super\(\s*'/.test(code))
    .map(([f]) => f)
  assert.deepEqual(found.sort(), makers)
})

test('a code is once in its table, in snake case unless the specification shows it otherwise, with a sentence and a status', () => {
  assert.ok(tables.length > 25)
  const names = tables.map(subsystemOf)
  assert.deepEqual(
    names.filter((name, i) => names.indexOf(name) !== i),
    [],
    'two tables have one name',
  )
  const shown =
    /^(invalid run id|invalid session id|no vfs session|vfs upstream unavailable|no sandbox worker|invalid or missing worker token: .+)$/
  const wrong: string[] = []
  for (const table of tables) {
    const codes = new Set<string>()
    for (const { subsystem, code, status, about, message } of rowsOf(table)) {
      const say = (what: string): void => void wrong.push(`${subsystem} ${code}: ${what}`)
      if (subsystem !== subsystemOf(table)) say('is of another subsystem than its table')
      if (codes.has(code)) say('is there twice')
      codes.add(code)
      if (!/^[a-z][a-z0-9]*(_[a-z0-9]+)*$/.test(code) && !shown.test(code)) say('is not snake case')
      if (!(status >= 400 && status <= 599)) say(`has the status ${status}`)
      for (const text of [about, message ?? about]) if (!/^[A-Z`].{10,}\.$/.test(text)) say(`has no sentence: ${text}`)
    }
  }
  assert.deepEqual(wrong, [])
})

test('one code has one status, but for a few of which each subsystem has its own idea', () => {
  const allowed: Readonly<Record<string, readonly number[]>> = {
    // A request that names one, and the path of one.
    unknown_mcp_server: [400, 404],
    unknown_profile: [400, 404],
    // One that this server made, and one that it was sent.
    state_too_large: [413, 500],
  }
  const statuses = new Map<string, Set<number>>()
  for (const { code, status } of tables.flatMap(rowsOf)) {
    statuses.set(code, (statuses.get(code) ?? new Set()).add(status))
  }
  const several = [...statuses].filter(([, some]) => some.size > 1)
  assert.deepEqual(Object.fromEntries(several.map(([code, some]) => [code, [...some].sort()])), allowed)
})

test('every table is handed over by a plugin, and each unit hands over what it takes from contracts', async () => {
  const files = await sources()
  /** Variable by variable, how the table in it is called. */
  const declared = new Map<string, string>()
  for (const [file, code] of files) {
    if (file.startsWith('examples/') || file === 'kernel/contracts/errors.ts') continue
    for (const [, variable, name] of code.matchAll(/const (\w+) = errorTable\('([^']+)'/g)) {
      assert.ok(!declared.has(variable!), `${variable} is the name of two tables`)
      declared.set(variable!, name!)
    }
    const written = code.match(/\berrorTable\(/g)?.length ?? 0
    assert.equal(written, [...code.matchAll(/const (\w+) = errorTable\('([^']+)'/g)].length, `${file}: a table unnamed`)
  }
  assert.deepEqual([...declared.values()].sort(), tables.map(subsystemOf).sort())

  const missing: string[] = []
  const units = Map.groupBy(files, ([file]) => /^(plugins|runtimes|providers)\/[^/]+/.exec(file)?.[0] ?? '')
  units.delete('')
  assert.ok(units.size > 30)
  for (const [unit, own] of units) {
    const handed = new Set(tablesOf(await pluginsIn(own)).map(subsystemOf))
    for (const [file, code] of own) {
      for (const [variable, name] of declared) {
        const imported = new RegExp(`import \\{[^}]*\\b${variable}\\b[^}]*\\} from '#(contracts|kit)/`).test(code)
        if (imported && !handed.has(name))
          missing.push(`${unit}: ${file} takes ${variable}, and no plugin hands it over`)
      }
    }
  }
  assert.deepEqual(missing, [])
})

/** Those among what is shipped that are exported by one of these files. */
async function pluginsIn(files: readonly (readonly [file: string, code: string])[]): Promise<Plugin[]> {
  const shipped = await shippedPlugins()
  const found: Plugin[] = []
  for (const [file, code] of files) {
    if (!code.includes('export default')) continue
    const { default: exported } = (await import(join(root, file))) as { default?: Plugin }
    if (exported && shipped.includes(exported)) found.push(exported)
  }
  return found
}

test('an answer is what its row says, its operation lists the code, and the document of the listener the row', async (t) => {
  const conductor = await startConductor(t)
  const { token } = await conductor.issue('acme', 'owner')
  const document = (await conductor.app.inject('/openapi.json')).json<{
    'x-errors': { code: string; status: number; message: string; retryable: boolean | string; subsystem: string }[]
  }>()
  const listed = new Map(document['x-errors'].map((row) => [`${row.subsystem} ${row.code}`, row]))
  for (const table of tables) {
    for (const { subsystem, code, named, status, about, retryable } of rowsOf(table)) {
      const row = listed.get(`${subsystem} ${named ? `${code}: NAME` : code}`)
      // These two are never in one process with a conductor.
      if (subsystem !== 'worker' && subsystem !== 'conductor-client')
        assert.deepEqual(row && [row.status, row.message, row.retryable], [status, about, retryable])
    }
  }
  const operations = await operationsOf(conductor.app)
  const asked = [
    ['POST', '/api/runs', '/api/runs', { profile: 'nobody', prompt: 'hello' }, 'runs', 'unknown_profile'],
    ['POST', '/api/runs', '/api/runs', { id: 'a b', profile: 'p', prompt: 'hello' }, 'runs', 'invalid run id'],
    ['GET', '/api/sessions/{id}/worker', '/api/sessions/sess_1/worker', undefined, 'sessions', 'no sandbox worker'],
  ] as const
  for (const [method, path, url, body, subsystem, code] of asked) {
    const reply = await conductor.call(token, method, url, body)
    const answer = reply.json<{ error: string; message?: string; retryable?: boolean }>()
    const row = tables.flatMap(rowsOf).find((one) => one.subsystem === subsystem && one.code === code)!
    assert.equal(answer.error, row.named ? `${code}: nobody` : code)
    assert.equal(reply.statusCode, row.status)
    assert.equal(answer.message, row.message)
    assert.equal(answer.retryable ?? false, row.retryable)
    const operation = operations.find((one) => one.method === method && one.path === path)!
    const response = operation.responses[row.status] as { 'x-errors'?: readonly string[] }
    assert.ok(response['x-errors']?.includes(row.named ? `${code}: NAME` : code), `${path} lists ${code}`)
  }
})
