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

/** Runs the script in a repository whose lock file was \`before\` one commit ago and is \`now\` today. */
async function check(t: TestContext, now: Record<string, Locked>, answers: Answers = {}, before = now) {
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
  const git = (...args: string[]) => promisify(execFile)('git', args, { cwd: folder })
  await git('init', '-q', '-b', 'trunk')
  for (const packages of [before, now]) {
    const places = Object.fromEntries(Object.entries(packages).map(([name, one]) => [`node_modules/${name}`, one]))
    await writeFile(join(folder, 'package-lock.json'), JSON.stringify({ packages: { '': {}, ...places } }))
    await git('add', '.')
    const who = ['-c', 'user.name=test', '-c', 'user.email=test@example.com']
    await git(...who, 'commit', '-q', '--allow-empty', '-m', 'state')
  }
  return new Promise<{ code: number; said: string }>((resolve) =>
    execFile(process.execPath, [script], { cwd: folder, env }, (error, stdout, stderr) =>
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
