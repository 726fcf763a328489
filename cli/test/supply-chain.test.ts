import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { chmod, cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const root = fileURLToPath(new URL('../..', import.meta.url))
const script = join(root, 'cli/scripts/supply-chain.js')
const daysAgo = (days: number): string => new Date(Date.now() - days * 86_400_000).toISOString()

interface Locked {
  readonly version: string
  readonly integrity?: string
  readonly hasInstallScript?: true
}
const locked = (version: string, rest: Partial<Locked> = {}): Locked => ({ version, integrity: 'sha512-x', ...rest })

/** What npm answers, by its first words; anything else fails as a registry that does not know the question. */
type Answers = Readonly<Record<string, unknown>>

const fakeNpm = `#!/usr/bin/env node
const answers = JSON.parse(require('fs').readFileSync(process.env.FAKE_NPM, 'utf8'))
const args = process.argv.slice(2).filter((arg) => !arg.startsWith('--')).join(' ')
if (!(args in answers)) {
  console.error('npm error 405 Method Not Allowed')
  process.exit(1)
}
console.log(JSON.stringify(answers[args]))
`

interface History {
  /** How old the commit is that has the lock file of before, in days. */
  readonly daysBefore?: number
  /** And of the one that changes it. */
  readonly daysNow?: number
  /** How many more commits follow on the one that changes it. */
  readonly later?: number
  /** How many commits the repository has of it, when it is a shallow clone. */
  readonly depth?: number
}

/** Runs the script in a repository whose lock file was `before`, was changed in a commit of its own, and is `now` today. */
async function check(
  t: TestContext,
  now: Record<string, Locked>,
  answers: Answers = {},
  before = now,
  { daysBefore = 0, daysNow = 0, later = 0, depth }: History = {},
) {
  const folder = await mkdtemp(join(tmpdir(), 'ao-supply-'))
  t.after(() => rm(folder, { recursive: true }))
  const bin = join(folder, 'bin')
  await mkdir(bin)
  await writeFile(join(bin, 'npm'), fakeNpm)
  await chmod(join(bin, 'npm'), 0o755)
  await writeFile(join(folder, 'answers.json'), JSON.stringify(answers))
  await writeFile(join(folder, 'package.json'), JSON.stringify({ allowScripts: { allowed: true } }))
  const env = {
    ...process.env,
    PATH: `${bin}${delimiter}${process.env['PATH']}`,
    FAKE_NPM: join(folder, 'answers.json'),
  }
  const days = [daysBefore, daysNow]
  let committed = ''
  const git = (...args: string[]) =>
    promisify(execFile)('git', args, { cwd: folder, env: { ...env, GIT_COMMITTER_DATE: committed } })
  await git('init', '-q', '-b', 'trunk')
  for (const packages of [before, now, ...Array<typeof now>(later).fill(now)]) {
    const places = Object.fromEntries(Object.entries(packages).map(([name, one]) => [`node_modules/${name}`, one]))
    await writeFile(join(folder, 'package-lock.json'), JSON.stringify({ packages: { '': {}, ...places } }))
    await git('add', '.')
    committed = daysAgo(days.shift() ?? 0)
    const who = ['-c', 'user.name=test', '-c', 'user.email=test@example.com']
    await git(...who, 'commit', '-q', '--allow-empty', '-m', 'state')
  }
  const clone = join(folder, 'clone')
  if (depth !== undefined) await git('clone', '-q', '--depth', String(depth), `file://${folder}`, clone)
  const cwd = depth === undefined ? folder : clone
  return new Promise<{ code: number; said: string }>((resolve) =>
    execFile(process.execPath, [script], { cwd, env }, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), said: stdout + stderr }),
    ),
  )
}

test('what the registry does not offer is skipped, and each skip is said', async (t) => {
  const { code, said } = await check(t, { a: locked('2.0.0') }, {}, { a: locked('1.0.0') })
  assert.equal(code, 0, said)
  for (const what of ['the age of a@2.0.0', 'signatures', 'the audit of .']) {
    assert.match(said, new RegExp(`skipped ${what}: .*405 Method Not Allowed`), what)
  }
})

test('a package without integrity, or with an install script that nobody chose, fails', async (t) => {
  const { code, said } = await check(t, {
    a: { version: '1.0.0' },
    b: locked('1.0.0', { integrity: 'sha1-x' }),
    c: locked('1.0.0', { hasInstallScript: true }),
    allowed: locked('1.0.0', { hasInstallScript: true }),
  })
  assert.equal(code, 1)
  assert.deepEqual(said.match(/FAILED: .*/g), [
    'FAILED: node_modules/a has no sha512 in the lock file',
    'FAILED: node_modules/b has no sha512 in the lock file',
    'FAILED: c has an install script; look at it, then put it into allowScripts',
  ])
})

test('a new version waits until it is a week old; those that were there already do not', async (t) => {
  const before = { old: locked('1.0.0'), '@scope/moved': locked('1.0.0') }
  const now = { ...before, '@scope/moved': locked('1.1.0'), added: locked('3.0.0') }
  const answers = (days: number): Answers => ({
    'view @scope/moved@1.1.0 time': { '1.0.0': daysAgo(900), '1.1.0': daysAgo(days) },
    'view added@3.0.0 time': { '3.0.0': daysAgo(400) },
  })
  const early = await check(t, now, answers(6), before)
  assert.equal(early.code, 1)
  assert.match(early.said, /FAILED: @scope\/moved@1\.1\.0 was published at .*: wait until it is 7 days old/)
  assert.doesNotMatch(early.said, /FAILED: added/)
  const later = await check(t, now, answers(8), before)
  assert.equal(later.code, 0, later.said)
  assert.match(later.said, /2 of 2 new versions are at least 7 days old/)
})

test('a version that was locked within the week is looked at, however many commits ago', async (t) => {
  const [before, now] = [{ a: locked('1.0.0') }, { a: locked('1.1.0') }]
  const answers: Answers = { 'view a@1.1.0 time': { '1.1.0': daysAgo(6) } }
  for (const history of [{ daysBefore: 8, later: 2 }, { later: 2 }, { daysBefore: 8, later: 2, depth: 4 }]) {
    const { code, said } = await check(t, now, answers, before, history)
    assert.equal(code, 1, said)
    assert.match(said, /FAILED: a@1\.1\.0 was published at/)
  }
  // What was locked longer ago is not asked for: it has been there for a week itself.
  const old = await check(t, now, answers, now, { daysBefore: 8, later: 2 })
  assert.equal(old.code, 0, old.said)
  assert.match(old.said, /no version is new since/)
  assert.doesNotMatch(old.said, /skipped the age/)
})

test('a commit that says it is old is looked at all the same', async (t) => {
  const [before, now] = [{ a: locked('1.0.0') }, { a: locked('1.1.0') }]
  const answers: Answers = { 'view a@1.1.0 time': { '1.1.0': daysAgo(6) } }
  for (const history of [
    { daysNow: 8, daysBefore: 9 },
    { daysNow: 8, later: 2 },
  ]) {
    const { code, said } = await check(t, now, answers, before, history)
    assert.equal(code, 1, said)
  }
})

test('a history that is not known for a week is compared with its first commit, and that is said', async (t) => {
  const [before, now] = [{ a: locked('1.0.0') }, { a: locked('1.1.0') }]
  const young = await check(t, now, {}, before)
  assert.match(
    young.said,
    /skipped the age of what was locked by \w{12}, the first commit here: the history is that young/,
  )
  assert.match(young.said, /skipped the age of a@1\.1\.0: /)
  const old = { daysBefore: 8, later: 2 }
  for (const depth of [1, 2]) {
    const { code, said } = await check(t, now, {}, before, { ...old, depth })
    assert.equal(code, 0, said)
    assert.match(said, /skipped the age of what was locked by \w{12}, the first commit here: the clone is shallow/)
    const rest = depth === 1 ? /skipped the age of new versions: there is no earlier commit/ : /no version is new since/
    assert.match(said, rest)
  }
})

test('a signature that is not valid and a serious known weakness fail; a slight one is told', async (t) => {
  const packages = { a: locked('1.0.0') }
  const weak = (severity: string) => ({ audit: { vulnerabilities: { a: { name: 'a', severity } } } })
  const good = { 'audit signatures': { invalid: [], missing: [] } }
  assert.equal((await check(t, packages, { ...good, ...weak('low') })).code, 0)
  for (const severity of ['high', 'critical'])
    assert.equal((await check(t, packages, { ...good, ...weak(severity) })).code, 1)
  const unsigned = await check(t, packages, {
    'audit signatures': { invalid: [{ name: 'a', version: '1.0.0' }], missing: [] },
  })
  assert.equal(unsigned.code, 1)
  assert.match(unsigned.said, /FAILED: a@1\.0\.0 has no valid signature/)
})

test('CI looks at packages before it runs any script of theirs, and runs the allowed ones alone', async () => {
  const steps = (await readFile(join(root, '.ci/run'), 'utf8')).split('\n').filter((line) => /^(npm|node) /.test(line))
  assert.deepEqual(steps.slice(0, 3), [
    'npm ci --ignore-scripts',
    'node cli/scripts/supply-chain.js',
    `npm rebuild $(node -p "Object.keys(require('./package.json').allowScripts).join(' ')")`,
  ])
})

test('the SBOM of a release names what is shipped, and nothing that only developers use', async (t) => {
  const { scripts, dependencies, devDependencies } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
    dependencies: Record<string, string>
    devDependencies: Record<string, string>
  }
  assert.deepEqual([scripts['prepack'], scripts['sbom']], ['npm run sbom', 'node cli/scripts/sbom.js'])
  const folder = await mkdtemp(join(tmpdir(), 'sbom-'))
  t.after(() => rm(folder, { recursive: true }))
  for (const file of ['package.json', 'package-lock.json']) await cp(join(root, file), join(folder, file))
  await promisify(execFile)(process.execPath, [join(root, 'cli/scripts/sbom.js')], { cwd: folder })
  const { bomFormat, components } = JSON.parse(await readFile(join(folder, 'sbom.cdx.json'), 'utf8')) as {
    bomFormat: string
    components: { group?: string; name: string }[]
  }
  const names = components.map(({ group, name }) => (group ? `${group}/${name}` : name))
  assert.equal(bomFormat, 'CycloneDX')
  assert.deepEqual(
    Object.keys(dependencies).filter((name) => !names.includes(name)),
    [],
  )
  assert.deepEqual(
    Object.keys(devDependencies).filter((name) => names.includes(name)),
    [],
  )
})
