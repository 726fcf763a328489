// `npm run generate` writes the files that are made from the code: docs/openapi, docs/errors.md and config/role.schema.json.
// With `--check` it writes nothing, names those that are stale, and fails. One process for all of them, because loading every
// plugin is most of the work.
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { root } from '../../kernel/config.ts'
import { errorsPage } from './errors.ts'
import { openApiDocuments } from './openapi.ts'
import { roleSchema } from './role-schema.ts'

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
