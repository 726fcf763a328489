// `npm run errors` writes docs/errors.md from the error tables of every plugin that a role file of `config/` lists. `--check`
// fails when the committed file is stale.
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { ErrorTable } from '#kernel'
import { type EndingKind, endings } from '#contracts/endings'
import { root } from '../../kernel/config.ts'
import { shownCode } from '../../kernel/contracts/error-docs.ts'
import { shippedTables, subsystemOf } from './error-tables.ts'

const about = `# Errors

<!-- Written by \`npm run errors\` from the error tables of the plugins: change those. -->

Every refusal has one shape and a fitting status: match on \`error\`, show \`message\`, quote \`request_id\` ([api.md](api.md)). A code is what is listed here, and stays what it is; sentences may become better. Where \`NAME\` follows a code, match on what comes before the colon.

**Retry** says whether the same request may succeed later. *Yes*: the answer has \`"retryable": true\`, and a client may repeat it by itself. *As said*: that depends, and \`retryable\` is there when it may. *Later*: not before something has changed that no client can wait for, so there is no \`retryable\`. *No*: change the request.

The OpenAPI documents list the same rows as \`x-errors\`: at their root all that the server answers, at a response the codes that the operation is known for. How to add one: [contributing.md](contributing.md#an-error).
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

async function document(): Promise<string> {
  const { services, runtimes } = await shippedTables()
  return [
    about,
    '## Answers, by subsystem\n\n`http` is what any route may answer. The MCP endpoint of a session answers in JSON-RPC once a message was read: `-32602` with the sentence of a refusal, `-32603` for a failure of ours.\n',
    ...services.map(section),
    '## How runs end\n\nThe `code` of the `error` event that ends a run, when the service ends it: [endings.ts](../kernel/contracts/endings.ts). *Lost* is a run whose executor stopped: nothing is wrong with it, and with `onCrash: retry` in its profile it is tried again by itself.\n',
    `${table(['Code', 'Status of the run', 'What it means', 'Lost'], endingRows)}\n`,
    '## Codes of runtimes\n\nA runtime that refuses or fails says so by the `error` event that ends the run; the status is that of the same refusal as an HTTP answer, when a bundle is handed to it for instance.\n',
    ...runtimes.map(section),
  ].join('\n')
}

const file = 'docs/errors.md'
const text = await document()
if (!process.argv.includes('--check')) await writeFile(join(root, file), text)
else if ((await readFile(join(root, file), 'utf8').catch(() => '')) !== text) {
  console.error(`${file} is stale: run npm run errors`)
  process.exitCode = 1
}
