// `npm run sbom` writes what is shipped as CycloneDX. npm's own `--omit dev` leaves out also what developers use beside the product.
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'

const args = ['sbom', '--sbom-format', 'cyclonedx', '--sbom-type', 'application', '--package-lock-only']
const bom = JSON.parse(execFileSync('npm', args, { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }))

/** True for what npm marks as needed by nobody but developers. */
const isDevelopment = ({ properties = [] }) =>
  properties.some(({ name, value }) => name === 'cdx:npm:package:development' && value === 'true')

// A package that is shipped may name one of them as an optional peer, for its types: npm then marks it otherwise, and installs it nowhere.
const { devDependencies = {} } = JSON.parse(readFileSync('package.json', 'utf8'))
const nameOf = ({ group, name }) => (group ? `${group}/${name}` : name)
const dropped = new Set(
  bom.components.filter((one) => isDevelopment(one) || nameOf(one) in devDependencies).map((one) => one['bom-ref']),
)
const dependsOn = new Map(bom.dependencies.map((one) => [one.ref, one.dependsOn ?? []]))
const reached = new Set([bom.metadata.component['bom-ref']])
for (const ref of reached) for (const next of dependsOn.get(ref) ?? []) if (!dropped.has(next)) reached.add(next)
const kept = (ref) => reached.has(ref)
const shipped = {
  ...bom,
  components: bom.components.filter((one) => kept(one['bom-ref'])),
  dependencies: bom.dependencies
    .filter(({ ref }) => kept(ref))
    .map((one) => ({ ...one, dependsOn: (one.dependsOn ?? []).filter(kept) })),
}
writeFileSync('sbom.cdx.json', `${JSON.stringify(shipped, null, 2)}\n`)
