// `npm run sbom` writes what is shipped as CycloneDX. npm's own `--omit dev` leaves out also what developers use beside the product.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'

const args = ['sbom', '--sbom-format', 'cyclonedx', '--sbom-type', 'application', '--package-lock-only']
const bom = JSON.parse(execFileSync('npm', args, { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }))

/** True for what npm marks as needed by nobody but developers. */
const isDevelopment = ({ properties = [] }) =>
  properties.some(({ name, value }) => name === 'cdx:npm:package:development' && value === 'true')

const dropped = new Set(bom.components.filter(isDevelopment).map((one) => one['bom-ref']))
const kept = (ref) => !dropped.has(ref)
const shipped = {
  ...bom,
  components: bom.components.filter((one) => kept(one['bom-ref'])),
  dependencies: bom.dependencies
    .filter(({ ref }) => kept(ref))
    .map((one) => ({ ...one, dependsOn: (one.dependsOn ?? []).filter(kept) })),
}
writeFileSync('sbom.cdx.json', `${JSON.stringify(shipped, null, 2)}\n`)
