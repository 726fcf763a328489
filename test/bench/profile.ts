// `node bench/profile.ts FILE.cpuprofile...`: where a role's CPU went, by self time: packages first, then functions.
import { readFileSync } from 'node:fs'

interface Profile {
  readonly nodes: readonly {
    readonly id: number
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number }
  }[]
  readonly samples: readonly number[]
  readonly timeDeltas: readonly number[]
}

const shown = 40

for (const file of process.argv.slice(2)) {
  const profile = JSON.parse(readFileSync(file, 'utf8')) as Profile
  const frames = new Map(profile.nodes.map((node) => [node.id, node.callFrame]))
  const packages = new Map<string, number>()
  const functions = new Map<string, number>()
  let busy = 0
  for (const [i, id] of profile.samples.entries()) {
    const frame = frames.get(id)
    const us = profile.timeDeltas[i] ?? 0
    if (!frame || frame.functionName === '(idle)') continue
    busy += us
    const place = placeOf(frame.url)
    const owner = place === '' ? frame.functionName : place
    packages.set(owner, (packages.get(owner) ?? 0) + us)
    const name = `${frame.functionName || '(anonymous)'} ${place === '' ? '' : `${frame.url.split('/').slice(-2).join('/')}:${frame.lineNumber + 1}`}`
    functions.set(name, (functions.get(name) ?? 0) + us)
  }
  const print = (title: string, counts: ReadonlyMap<string, number>): void => {
    process.stdout.write(`\n${title}\n`)
    for (const [name, us] of [...counts].toSorted((a, b) => b[1] - a[1]).slice(0, shown)) {
      process.stdout.write(
        `${((us / busy) * 100).toFixed(1).padStart(6)} %  ${(us / 1000).toFixed(0).padStart(7)} ms  ${name}\n`,
      )
    }
  }
  process.stdout.write(`\n=== ${file}: ${(busy / 1000).toFixed(0)} ms busy\n`)
  print('by package or folder', packages)
  print('by function', functions)
}

/** `undici`, `node:http`, `plugins/runs`; empty for native code and the collector. */
function placeOf(url: string): string {
  if (url === '') return ''
  if (url.startsWith('node:')) return url.split('/')[0] ?? url
  const [, dependency] = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url) ?? []
  if (dependency !== undefined) return dependency
  const [, unit] = /\/((?:plugins|runtimes|providers)\/[^/]+|kernel|cli)\//.exec(url) ?? []
  return unit ?? url
}
