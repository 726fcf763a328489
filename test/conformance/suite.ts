// The official conformance suite of MCP, and what docs/conformance.md says of its scenarios.
import { execFile } from 'node:child_process'
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { createServer, request as ask } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const program = join(root, 'node_modules/@modelcontextprotocol/conformance/dist/index.js')

export const revisions = ['2025-11-25', '2026-07-28'] as const
export type Revision = (typeof revisions)[number]

interface Check {
  readonly id: string
  readonly status: 'SUCCESS' | 'FAILURE' | 'WARNING' | 'SKIPPED' | 'INFO'
  readonly errorMessage?: string
}
export type Checks = ReadonlyMap<string, readonly Check[]>

/** Standard output of the suite. It exits with 1 when a scenario fails, those that do not apply among them. */
const run = (args: readonly string[]): Promise<string> =>
  new Promise((resolve, reject) => {
    execFile(process.execPath, [program, ...args], { maxBuffer: 64 * 1024 * 1024 }, (error, stdout, stderr) => {
      if (error && error.code !== 1) reject(new Error(`${error.message}\n${stderr}`))
      else resolve(stdout)
    })
  })

/** What the suite found, by scenario. `args`: those of its command, but for where results go. */
export async function runSuite(args: readonly string[]): Promise<Checks> {
  const folder = await mkdtemp(join(tmpdir(), 'conformance-'))
  try {
    await run([...args, '--output-dir', folder])
    const found = new Map<string, readonly Check[]>()
    for (const entry of await readdir(folder, { recursive: true })) {
      const [, scenario] = /^(?:server-)?(.+)-\d{4}-\d\d-\d\dT[^/]*\/checks\.json$/.exec(entry) ?? []
      if (scenario === undefined) continue
      found.set(scenario, JSON.parse(await readFile(join(folder, entry), 'utf8')) as Check[])
    }
    return found
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** The names of all its scenarios for servers, or for clients. */
export async function scenariosOf(side: 'server' | 'client'): Promise<readonly string[]> {
  const listed = await run(['list', `--${side}`])
  return [...listed.matchAll(/^ {2}- (\S+)/gm)].map((match) => match[1]!)
}

/** What the document says of a scenario at an endpoint. */
export interface Claim {
  readonly revisions: readonly Revision[]
  /** Checks of it that do not apply. */
  readonly except: readonly string[]
}
export interface Row {
  readonly scenario: string
  readonly claims: readonly Claim[]
  readonly why: string
}

/** The rows of the table below a heading of docs/conformance.md. */
export async function documented(heading: string): Promise<readonly Row[]> {
  const text = await readFile(join(root, 'docs/conformance.md'), 'utf8')
  const [, section = ''] = text.split(`\n## ${heading}\n`)
  const lines = section
    .split('\n## ')[0]!
    .split('\n')
    .filter((line) => line.startsWith('| `'))
  return lines.map((line) => {
    const [scenario = '', ...rest] = line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim())
    return { scenario: scenario.replaceAll('`', ''), claims: rest.slice(0, -1).map(claimOf), why: rest.at(-1)! }
  })
}

function claimOf(cell: string): Claim {
  const [, said = '', except = ''] = /^(both|no|\d{4}-\d\d-\d\d)(?: but (.+))?$/.exec(cell) ?? []
  if (said === '') throw new Error(`docs/conformance.md says '${cell}'`)
  return {
    revisions: said === 'both' ? revisions : said === 'no' ? [] : [said as Revision],
    except: [...except.matchAll(/`([^`]+)`/g)].map((match) => match[1]!),
  }
}

/** Why a claim does not hold; undefined when it does. */
export function complaint(checks: readonly Check[] | undefined, { except }: Claim): string | undefined {
  if (!checks) return 'it was not run'
  const failed = checks.filter(({ id, status }) => status === 'FAILURE' && !except.includes(id))
  if (failed.length > 0) return failed.map(({ id, errorMessage }) => `${id}: ${errorMessage}`).join('\n')
  return checks.some(({ status }) => status === 'SUCCESS' || status === 'INFO') ? undefined : 'it has checked nothing'
}

const toolName = /\b(?=test_|json_schema_2020_12_tool)/

/**
 * The suite sends no key, and calls tools by bare names. This stands before an endpoint, adds a key, and puts a prefix before names
 * of tools, which it takes from lists; everything else passes as it is, Host and Origin, too.
 */
export async function frontOf(
  t: Pick<TestContext, 'after'>,
  endpoint: string,
  key: string,
  prefix: string,
): Promise<string> {
  const { hostname, port, pathname } = new URL(endpoint)
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString().replace(toolName, prefix)
    const headers = [...request.rawHeaders]
    for (let i = 0; i < headers.length; i += 2) {
      const name = headers[i]!.toLowerCase()
      if (name === 'mcp-name') headers[i + 1] = headers[i + 1]!.replace(toolName, prefix)
      if (name === 'content-length') headers[i + 1] = String(Buffer.byteLength(body))
    }
    headers.push('authorization', `Bearer ${key}`)
    const onward = ask({ hostname, port, method: request.method, path: pathname, headers }, async (answer) => {
      const passed = answer.rawHeaders.filter((_, i, all) => all[i - (i % 2)]!.toLowerCase() !== 'content-length')
      response.writeHead(answer.statusCode!, passed)
      for await (const chunk of answer) response.write(prefix === '' ? chunk : String(chunk).replaceAll(prefix, ''))
      response.end()
    })
    onward.on('error', () => response.destroy())
    response.on('close', () => onward.destroy())
    onward.end(body)
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}`
}
