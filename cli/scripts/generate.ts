// `npm run generate` writes the files that are made from the code: docs/openapi, docs/errors.md and config/role.schema.json.
// With `--check` it writes nothing, names those that are stale, and fails. One process for all of them, because loading every
// plugin is most of the work.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { boot } from '#kernel'
import { loadRole, root } from '../../kernel/config.ts'
import { sampleEnvironment } from '../check-config.ts'
import { errorsPage } from './errors.ts'
import { roleSchema } from './role-schema.ts'

type Json = Record<string, unknown>

/** Sorts the paths, so that the order in which plugins mount does not show in a diff. */
function stable(document: Json): string {
  const paths = Object.entries(document['paths'] as Json).sort(([a], [b]) => (a < b ? -1 : 1))
  return `${JSON.stringify({ ...document, paths: Object.fromEntries(paths) }, null, 2)}\n`
}

/**
 * docs/openapi/<listener>.json, from the routes of the development role. The role is booted for real, because only a plugin that
 * is set up knows its routes; no port is opened.
 */
async function openApiDocuments(): Promise<Map<string, string>> {
  const data = await mkdtemp(join(tmpdir(), 'agent-orc-openapi-'))
  try {
    return await documents(data)
  } finally {
    await rm(data, { recursive: true, force: true })
  }
}

async function documents(data: string): Promise<Map<string, string>> {
  // The sample servers do not exist. A role boots without its database, whose routes are the same; memory and parts of the process replace the others.
  const absent = {
    POSTGRES_DSN: 'postgres://nobody@127.0.0.1:1/none',
    REDIS_URL: '',
    SIDECAR_URL: '',
    RUNNER_SIGNING_KEY_CURRENT: '',
  }
  const env = { ...(await sampleEnvironment()), ...absent, AGENT_ORC_DATA: data, LOG_LEVEL: 'error' }
  const running = await boot(await loadRole(join(root, 'config/dev.yaml'), { env }), { listen: false })
  try {
    const found = new Map<string, string>()
    for (const [name, app] of Object.entries(running.listeners)) {
      // Not by asking: a listener whose callers sign answers nobody else.
      found.set(`docs/openapi/${name}.json`, stable(JSON.parse(JSON.stringify(app.swagger())) as Json))
    }
    return found
  } finally {
    await running.stop()
  }
}

const files = new Map([
  ...(await openApiDocuments()),
  ['docs/errors.md', await errorsPage()],
  ['config/role.schema.json', await roleSchema()],
])
for (const [file, text] of files) {
  const path = join(root, file)
  if (!process.argv.includes('--check')) await writeFile(path, text)
  else if ((await readFile(path, 'utf8').catch(() => '')) !== text) {
    console.error(`${file} is stale: run npm run generate`)
    process.exitCode = 1
  }
}
