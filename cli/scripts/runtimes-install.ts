// `npm run runtimes:install [name…]`: the vendor packages of runtimes, which the default install leaves out (each is 400 MB). Each
// runtime pins its own in `runtimes/<name>/vendor/package.json` with a lock file; `npm ci` of this repository does not touch them.
import { spawn } from 'node:child_process'
import { copyFile, glob, mkdtemp, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const progressMs = 5_000

interface Vendor {
  /** The name of the runtime in profiles. */
  readonly runtime: string
  readonly folder: string
  readonly packages: readonly (readonly [name: string, version: string])[]
}

async function main(names: readonly string[]): Promise<number> {
  const all = await Array.fromAsync(glob('runtimes/*/vendor/package.json', { cwd: root }), read)
  const known = all.map(({ runtime }) => runtime).toSorted()
  const unknown = names.filter((name) => !known.includes(name))
  if (unknown.length > 0) {
    console.error(`There is no vendor package for ${unknown.join(', ')}; there is one for ${known.join(', ')}.`)
    return 1
  }
  for (const vendor of all.toSorted((a, b) => (a.runtime < b.runtime ? -1 : 1))) {
    if (names.length > 0 && !names.includes(vendor.runtime)) continue
    if ((await installed(vendor)) || (await install(vendor))) continue
    return 1
  }
  return 0
}

async function read(file: string): Promise<Vendor> {
  const { dependencies } = JSON.parse(await readFile(join(root, file), 'utf8')) as {
    dependencies: Record<string, string>
  }
  const folder = join(root, dirname(file))
  return { runtime: file.split(/[/\\]/)[1]!.replaceAll('-', '_'), folder, packages: Object.entries(dependencies) }
}

async function installed({ runtime, folder, packages }: Vendor): Promise<boolean> {
  for (const [name, version] of packages) {
    const text = await readFile(join(folder, 'node_modules', name, 'package.json'), 'utf8').catch(() => '{}')
    if ((JSON.parse(text) as { version?: string }).version !== version) return false
  }
  console.log(`${runtime}: ${list(packages)} is installed.`)
  return true
}

async function install({ runtime, folder, packages }: Vendor): Promise<boolean> {
  console.log(`${runtime}: installing ${list(packages)} …`)
  const began = performance.now()
  const seconds = (): string => `${Math.round((performance.now() - began) / 1_000)} s`
  // Beside its place and moved there whole: a server that looks for the package meanwhile would see a part of it, and Node does not
  // look again for a package.json that was missing once. Former ones are those of installs that were killed.
  for await (const former of glob('.install-*', { cwd: folder })) await rm(join(folder, former), { recursive: true })
  const staging = await mkdtemp(join(folder, '.install-'))
  for (const file of ['package.json', 'package-lock.json']) await copyFile(join(folder, file), join(staging, file))
  // Without install scripts: the packages need none, and what is downloaded runs only when a run asks for it.
  const args = ['ci', '--prefix', staging, '--ignore-scripts', '--no-audit', '--no-fund']
  const npm = spawn('npm', args, {
    cwd: staging,
    stdio: ['ignore', 'ignore', 'inherit'],
    shell: process.platform === 'win32',
  })
  const progress = setInterval(() => {
    void size(staging).then((bytes) => console.log(`${runtime}: ${megabytes(bytes)} after ${seconds()}`))
  }, progressMs)
  const code = await new Promise<number>((resolve) => {
    npm.on('error', (error) => {
      console.error(error.message)
      resolve(1)
    })
    npm.on('exit', (exit) => resolve(exit ?? 1))
  })
  clearInterval(progress)
  if (code === 0) {
    await rm(join(folder, 'node_modules'), { recursive: true, force: true })
    await rename(join(staging, 'node_modules'), join(folder, 'node_modules'))
  }
  await rm(staging, { recursive: true })
  if (code === 0) console.log(`${runtime}: ready after ${seconds()}, ${megabytes(await size(folder))}.`)
  else console.error(`${runtime}: npm could not install ${list(packages)}.`)
  return code === 0
}

const list = (packages: Vendor['packages']): string =>
  packages.map(([name, version]) => `${name}@${version}`).join(' and ')

const megabytes = (bytes: number): string => `${Math.round(bytes / 1_000_000)} MB`

/** The bytes of all files in a folder; files that npm moves meanwhile do not count. */
async function size(folder: string): Promise<number> {
  let total = 0
  for await (const file of glob('**/*', { cwd: folder })) {
    total += await stat(join(folder, file)).then(
      (stats) => (stats.isFile() ? stats.size : 0),
      () => 0,
    )
  }
  return total
}

process.exitCode = await main(process.argv.slice(2))
