import { readdirSync, readFileSync } from 'node:fs'
import { open, readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'

/** The forms in which a value may turn up: as it is, in JSON, for a URL, in hex, and in base64 wherever it begins. */
export function formsOf(value: string): readonly string[] {
  const bytes = Buffer.from(value)
  const base64 = [0, 1, 2].map((shift) => {
    const text = Buffer.concat([Buffer.alloc(shift), bytes])
      .toString('base64')
      .replaceAll('=', '')
    // What depends on the bytes around it is cut off.
    const whole = Math.floor(((shift + bytes.length) * 8) / 6)
    return text.slice(Math.ceil((shift * 8) / 6), whole)
  })
  return [
    value,
    JSON.stringify(value).slice(1, -1),
    encodeURIComponent(value),
    encodeURI(value),
    bytes.toString('hex'),
    bytes.toString('hex').toUpperCase(),
    ...base64,
    ...base64.map((text) => text.replaceAll('+', '-').replaceAll('/', '_')),
  ]
}

/** The names of the values that are in a text, in whatever form. */
export const foundIn = (text: string, values: Readonly<Record<string, string>>): string[] =>
  Object.entries(values)
    .filter(([, value]) => formsOf(value).some((form) => text.includes(form)))
    .map(([name]) => name)

/** Every row of every table as text, as a tenant sees them; bytes in hex. */
export async function dumpOf(dsn: string, tenantId: string): Promise<ReadonlyMap<string, string>> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenantId])
    const { rows: tables } = await client.query<{ name: string }>(
      `SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'`,
    )
    const dump = new Map<string, string>()
    for (const { name } of tables) {
      const { rows } = await client.query<{ row: string }>(`SELECT t::text AS row FROM ${name} t`)
      dump.set(name, rows.map(({ row }) => row).join('\n'))
    }
    return dump
  } finally {
    await client.end()
  }
}

/** The names of the values that are in the memory of a session's sandbox, as far as its processes can write to it, or in their environment. */
export async function foundInMemory(sessionId: string, values: Readonly<Record<string, string>>): Promise<string[]> {
  const forms = Object.entries(values).flatMap(([name, value]) => formsOf(value).map((form) => ({ name, form })))
  const needles = [...new Map(forms.map((one) => [one.form, one])).values()]
  const found = new Set<string>()
  const look = (bytes: Buffer): void => {
    for (const { name, form } of needles) if (!found.has(name) && bytes.includes(form)) found.add(name)
  }
  for (const pid of readdirSync('/proc').filter((one) => /^\d+$/.test(one))) {
    if (!environmentOf(pid).includes(sessionId)) continue
    look(Buffer.from(environmentOf(pid)))
    await readWritable(pid, look)
  }
  return [...found]
}

function environmentOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8')
  } catch {
    return ''
  }
}

const block = 4 * 1024 * 1024
const overlap = 1_024

async function readWritable(pid: string, look: (bytes: Buffer) => void): Promise<void> {
  const bytes = Buffer.alloc(block)
  const zeros = Buffer.alloc(block)
  const memory = await open(`/proc/${pid}/mem`)
  try {
    for (const line of (await readFile(`/proc/${pid}/maps`, 'utf8')).split('\n')) {
      const [, from = '0', to = '0'] = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line) ?? []
      for (let at = parseInt(from, 16); at < parseInt(to, 16); at += block - overlap) {
        const size = Math.min(block, parseInt(to, 16) - at)
        // Some of it is only reserved.
        const { bytesRead } = await memory.read(bytes, 0, size, at).catch(() => ({ bytesRead: 0 }))
        const part = bytes.subarray(0, bytesRead)
        if (!part.equals(zeros.subarray(0, bytesRead))) look(part)
      }
    }
  } finally {
    await memory.close()
  }
}

/** Every file below a folder. */
export async function textsIn(folder: string): Promise<string> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map((file) => join(file.parentPath, file.name))
  return (await Promise.all(files.map((file) => readFile(file, 'latin1')))).join('\n')
}
