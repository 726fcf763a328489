// `npm run supply-chain [commit]`: what can be known of the packages in the lock files before any of their code runs. Plain
// JavaScript without dependencies, because it runs between `npm ci --ignore-scripts` and the first install script, on any Node.
// What a registry does not offer is skipped, and that is said.
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** A version that nobody looked at yet is the way in: most bad ones are found and taken back within days. */
const leastAgeDays = 7
/** What one question to the registry may take, in milliseconds. */
const patienceMs = 60_000
/** Publishing times that are asked for at once, and altogether. */
const atOnce = 8
const mostAsked = 500

const dayMs = 86_400_000
const run = (file, args, cwd = '.') =>
  new Promise((resolve) => {
    const options = { cwd, timeout: patienceMs, maxBuffer: 64 * 1024 * 1024 }
    execFile(file, args, options, (error, stdout, stderr) => resolve({ ok: !error, stdout, stderr, error }))
  })
const npm = (args, cwd) => run('npm', [...args, '--json', '--fetch-retries=1', '--fetch-retry-mintimeout=500'], cwd)
const git = async (...args) => {
  const { ok, stdout } = await run('git', args)
  return ok ? stdout.trim() : undefined
}
const parsed = (text) => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

let failed = false
const say = (what) => console.log(`supply chain: ${what}`)
const fail = (what) => {
  failed = true
  console.error(`supply chain: FAILED: ${what}`)
}
/** Why npm has no answer, in one line. */
const reasonOf = ({ stdout, stderr, error }) => {
  const told = parsed(stdout)
  const lines = stderr.split('\n').filter((line) => /^npm (error|ERR!)/.test(line))
  const text = told?.error?.summary || told?.error?.code || told?.message || lines[0] || error?.message || 'no answer'
  return String(text).split('\n')[0].slice(0, 200)
}

/** The folders with a lock file: the default install, and what each runtime has of its vendor. */
const folders = ['.']
if (existsSync('runtimes')) {
  for (const name of readdirSync('runtimes')) {
    const folder = join('runtimes', name, 'vendor')
    if (existsSync(join(folder, 'package-lock.json'))) folders.push(folder)
  }
}
const lockOf = (folder) => parsed(readFileSync(join(folder, 'package-lock.json'), 'utf8')) ?? { packages: {} }
const nameOf = (place, { name }) => name ?? place.slice(place.lastIndexOf('node_modules/') + 'node_modules/'.length)
const entriesOf = (lock) => Object.entries(lock.packages ?? {}).filter(([place, { link }]) => place !== '' && !link)

/** Every package is held to its content by the lock file, and only those that were chosen may run something when installed. */
function checkLocks() {
  const allowed = parsed(readFileSync('package.json', 'utf8'))?.allowScripts ?? {}
  let packages = 0
  for (const folder of folders) {
    for (const [place, entry] of entriesOf(lockOf(folder))) {
      packages++
      const name = nameOf(place, entry)
      if (!entry.integrity?.startsWith('sha512-')) fail(`${join(folder, place)} has no sha512 in the lock file`)
      // The vendors' packages are installed without scripts.
      const runs = entry.hasInstallScript && folder === '.'
      if (runs && allowed[name] !== true)
        fail(`${name} has an install script; look at it, then put it into allowScripts`)
    }
  }
  say(
    `${packages} packages in ${folders.length} lock files have their integrity, and no other install scripts than allowed`,
  )
}

/** Where this line of work began, or the commit before this one. */
async function beginning() {
  const head = await git('rev-parse', 'HEAD')
  for (const branch of ['origin/main', 'main']) {
    const base = await git('merge-base', 'HEAD', branch)
    if (base && base !== head) return base
  }
  return git('rev-parse', '--verify', '--quiet', 'HEAD~1')
}

/**
 * What HEAD was before its youngest age, or the first commit that is known. One that says it is older than the commit that it follows
 * is as young as that one.
 */
async function lastOld() {
  const log = await git('log', '--first-parent', '--format=%H %ct')
  if (!log) return undefined
  const history = log.split('\n').map((line) => line.split(' '))
  const young = (at) => Date.now() - Number(at) * 1_000 < leastAgeDays * dayMs
  const [old] = history[history.findLastIndex(([, at]) => young(at)) + 1] ?? []
  if (old) return old
  const shallow = (await git('rev-parse', '--is-shallow-repository')) === 'true'
  const [first] = history.at(-1)
  const why = shallow ? 'the clone is shallow' : 'the history is that young'
  say(`skipped the age of what was locked by ${first.slice(0, 12)}, the first commit here: ${why}`)
  return history.length > 1 ? first : undefined
}

/**
 * The commits to compare with: a version is not new when all of them have it. Whatever was locked as long ago as a version has to
 * wait is old enough; but a commit has the date that its author likes, so what this line of work brings is looked at in any case.
 */
async function baseCommits() {
  if (process.argv[2]) return [process.argv[2]]
  return [...new Set([await lastOld(), await beginning()])].filter(Boolean)
}

const versionsOf = (lock) =>
  new Set(entriesOf(lock).map(([place, entry]) => `${nameOf(place, entry)}@${entry.version ?? ''}`))

/** No version is used in its first days. */
async function checkAges() {
  const bases = await baseCommits()
  if (bases.length === 0) return say('skipped the age of new versions: there is no earlier commit to compare with')
  const fresh = new Set()
  for (const folder of folders) {
    const known = await Promise.all(
      bases.map(async (base) => {
        const before = await git('show', `${base}:./${join(folder, 'package-lock.json')}`)
        return versionsOf(parsed(before ?? '{}') ?? {})
      }),
    )
    for (const one of versionsOf(lockOf(folder))) if (!known.every((versions) => versions.has(one))) fresh.add(one)
  }
  if (fresh.size === 0) return say(`no version is new since ${bases.map((base) => base.slice(0, 12)).join(' and ')}`)
  const asked = [...fresh].slice(0, mostAsked)
  if (fresh.size > asked.length) say(`skipped the age of ${fresh.size - asked.length} versions: there are too many`)
  let old = 0
  const next = async () => {
    for (let one = asked.pop(); one; one = asked.pop()) {
      const at = one.lastIndexOf('@')
      const answer = await npm(['view', one, 'time'])
      const published = Date.parse(parsed(answer.stdout)?.[one.slice(at + 1)])
      if (Number.isNaN(published))
        say(`skipped the age of ${one}: ${answer.ok ? 'the registry has no time' : reasonOf(answer)}`)
      else if (Date.now() - published >= leastAgeDays * dayMs) old++
      else
        fail(`${one} was published at ${new Date(published).toISOString()}: wait until it is ${leastAgeDays} days old`)
    }
  }
  await Promise.all(Array.from({ length: atOnce }, next))
  say(`${old} of ${fresh.size} new versions are at least ${leastAgeDays} days old`)
}

/** The registry's signatures of what is installed. */
async function checkSignatures() {
  const answer = await npm(['audit', 'signatures'])
  const { invalid, missing } = parsed(answer.stdout) ?? {}
  if (!Array.isArray(invalid)) return say(`skipped signatures: ${reasonOf(answer)}`)
  for (const { name, version } of [...invalid, ...(missing ?? [])]) fail(`${name}@${version} has no valid signature`)
  say(`signatures were checked, ${invalid.length + (missing?.length ?? 0)} are not valid`)
}

/** Known weaknesses of what is shipped. */
async function checkAdvisories(folder) {
  const answer = await npm(['audit', '--omit=dev', '--package-lock-only'], folder)
  const found = parsed(answer.stdout)?.vulnerabilities
  if (!found) return say(`skipped the audit of ${folder}: ${reasonOf(answer)}`)
  const all = Object.values(found)
  for (const { name, severity } of all) {
    if (['high', 'critical'].includes(severity)) fail(`${name} has a known weakness (${severity}): npm audit`)
  }
  say(`audit of ${folder}: ${all.length} packages with known weaknesses`)
}

checkLocks()
await Promise.all([checkAges(), checkSignatures(), ...folders.map(checkAdvisories)])
process.exitCode = failed ? 1 : 0
