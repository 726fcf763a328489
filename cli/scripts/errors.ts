import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { ErrorTable, Plugin } from '#kernel'
import { type EndingKind, endings } from '#contracts/endings'
import { Runtimes } from '#contracts/runtime'
import { loadRole, root } from '../../kernel/config.ts'
import { shownCode, tablesOf } from '../../kernel/contracts/error-docs.ts'
import { sampleEnvironment } from '../check-config.ts'

/** Every plugin that a role file of `config/` lists, once. */
export async function shippedPlugins(): Promise<Plugin[]> {
  const env = await sampleEnvironment()
  const files = (await readdir(join(root, 'config'))).filter((file) => file.endsWith('.yaml')).sort()
  const found = new Set<Plugin>()
  for (const file of files) {
    const role = await loadRole(join(root, 'config', file), { env })
    for (const { plugin } of role.plugins) found.add(plugin)
  }
  return [...found]
}

/** The name of a table is said by its rows. */
export const subsystemOf = (table: ErrorTable): string => Object.values(table)[0]?.row.subsystem ?? ''

/** The tables of all that is shipped, runtimes apart; what any route may answer first, the others by name. */
export async function shippedTables(): Promise<{ services: ErrorTable[]; runtimes: ErrorTable[] }> {
  const plugins = await shippedPlugins()
  const adapters = plugins.filter(({ provides }) => Object.values(provides).some(({ id }) => id === Runtimes.id))
  const [any, ...rest] = tablesOf(plugins)
  const ofRuntimes = new Set(tablesOf(adapters))
  const byName = (a: ErrorTable, b: ErrorTable): number => (subsystemOf(a) < subsystemOf(b) ? -1 : 1)
  return {
    services: [any!, ...rest.filter((table) => !ofRuntimes.has(table)).sort(byName)],
    runtimes: rest.filter((table) => ofRuntimes.has(table)).sort(byName),
  }
}

const about = `# Errors

<!-- Written by \`npm run generate\` from the error tables of the plugins: change those. -->

Every error has one shape and a suitable status: match on \`error\`, show \`message\`, quote \`request_id\` ([api.md](api.md)). Codes are stable; sentences may change. If \`NAME\` follows a code, match on the part before the colon.

**Retry** says whether the same request may succeed later. *Yes*: the answer has \`"retryable": true\`, and a client may repeat it by itself. *As said*: it depends, and \`retryable\` is there when a retry may help. *Later*: only after something has changed that a client cannot wait for, so there is no \`retryable\`. *No*: change the request.

The OpenAPI documents list the same rows as \`x-errors\`: at their root all errors of the server, and at each response the codes of the operation. How to add one: [contributing.md](contributing.md#an-error).
`

const retries = { true: 'yes', false: 'no', later: 'later', 'as-said': 'as said' } as const

const cell = (text: string): string => text.replaceAll('|', '\\|')
const table = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.map(cell).join(' | ')} |`).join('\n')

function section(errors: ErrorTable): string {
  const rows = Object.values(errors)
    .map(({ row }) => row)
    .sort((a, b) => a.status - b.status || (a.code < b.code ? -1 : 1))
    .map((row) => [`\`${shownCode(row)}\``, String(row.status), row.about, retries[`${row.retryable}`]])
  return `### ${subsystemOf(errors)}\n\n${table(['Code', 'Status', 'What it means', 'Retry'], rows)}\n`
}

const endingRows = Object.entries<EndingKind>(endings).map(([code, { status, message, lost }]) => [
  `\`${code}\``,
  `\`${status}\``,
  message,
  lost ? 'yes' : 'no',
])

/** docs/errors.md, from the error tables of every plugin that a role file of `config/` lists. */
export async function errorsPage(): Promise<string> {
  const { services, runtimes } = await shippedTables()
  return [
    about,
    '## Answers, by subsystem\n\n`http` has the errors of any route. The MCP endpoint of a session answers in JSON-RPC once it has read a message: `-32602` with the sentence of a refusal, `-32603` for an internal error.\n',
    ...services.map(section),
    '## How runs end\n\nThe `code` of the `error` event that ends a run, when the service ends it: [endings.ts](../kernel/contracts/endings.ts). *Lost* is a run whose executor stopped: nothing is wrong with it, and with `onCrash: retry` in its profile it is retried automatically.\n',
    `${table(['Code', 'Status of the run', 'What it means', 'Lost'], endingRows)}\n`,
    '## Codes of runtimes\n\nA runtime that refuses or fails ends the run with an `error` event; the status is that of the same error as an HTTP answer, for example when the runtime gets a bundle.\n',
    ...runtimes.map(section),
  ].join('\n')
}
