import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type PostgresServer, startPostgres } from '#kit/postgres'

const settings = { fsync: 'off' }

// Hooks run in the order they were registered: a directory is removed by the hook that has stopped its servers first.
const started: { readonly dataDir: string; readonly server: PostgresServer }[] = []

async function directory(t: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'ao-embedded-'))
  t.after(async () => {
    for (const { dataDir, server } of started) if (dataDir.startsWith(path)) await server.stop()
    await rm(path, { recursive: true, maxRetries: 10 })
  })
  return join(path, 'postgres')
}

async function start(dataDir: string, more: Readonly<Record<string, string>> = settings): Promise<PostgresServer> {
  const server = await startPostgres({ dataDir, settings: more })
  started.push({ dataDir, server })
  return server
}

async function query(dsn: string, text: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

const serverPid = async (dataDir: string): Promise<number> =>
  Number((await readFile(join(dataDir, 'postmaster.pid'), 'utf8')).split('\n')[0])

const runs = (pid: number): boolean => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

async function until(holds: () => boolean): Promise<void> {
  for (let attempt = 0; attempt < 2_000 && !holds(); attempt++) await sleep(5)
  assert.ok(holds(), 'it never came true')
}

/** Another process that starts a server and then does nothing. */
async function parent(t: TestContext, dataDir: string): Promise<ChildProcess> {
  const library = import.meta.resolve('#kit/postgres')
  const script = `const { startPostgres } = await import('${library}')
    await startPostgres({ dataDir: ${JSON.stringify(dataDir)}, settings: { fsync: 'off' } })
    console.log('ready')`
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.after(() => child.kill('SIGKILL'))
  await once(child.stdout, 'data')
  return child
}

test('the first start makes a database whose role is no superuser, the second finds what the first kept', async (t) => {
  const dataDir = await directory(t)
  const first = await start(dataDir)
  assert.deepEqual(
    await query(first.dsn(), 'SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user'),
    [{ rolname: 'agent_orc', rolsuper: false, rolbypassrls: false }],
  )
  await query(first.dsn(), `CREATE TABLE kept AS SELECT 'Élan' AS text`)
  await first.stop()
  const second = await start(dataDir)
  assert.deepEqual(await query(second.dsn(), 'SELECT lower(text) AS text FROM kept'), [{ text: 'élan' }])
})

async function settingsOf(server: PostgresServer, ...names: string[]): Promise<unknown> {
  const values = names.map((name) => `current_setting('${name}') AS ${name}`)
  return (await query(server.dsn(), `SELECT ${values.join()}`))[0]
}

test('writes survive a crash and nobody connects but through the socket, unless the settings say otherwise', async (t) => {
  const server = await start(await directory(t), {})
  assert.deepEqual(await settingsOf(server, 'fsync', 'synchronous_commit', 'full_page_writes', 'listen_addresses'), {
    fsync: 'on',
    synchronous_commit: 'on',
    full_page_writes: 'on',
    listen_addresses: '',
  })
})

test('files of the log are small, as a commit may have to wait for a new one; how much of it is kept is as usual', async (t) => {
  const server = await start(await directory(t), {})
  assert.deepEqual(await settingsOf(server, 'wal_segment_size', 'min_wal_size', 'max_wal_size', 'wal_buffers'), {
    wal_segment_size: '2MB',
    min_wal_size: '80MB',
    max_wal_size: '1GB',
    wal_buffers: '4MB',
  })
})

test('stopping ends sessions and the server, and leaves no lock', async (t) => {
  const dataDir = await directory(t)
  const server = await start(dataDir)
  const client = new pg.Client({ connectionString: server.dsn() })
  client.on('error', () => {})
  await client.connect()
  const pid = await serverPid(dataDir)
  await Promise.all([server.stop(), server.stop()])
  assert.equal(runs(pid), false)
  await assert.rejects(stat(join(dataDir, 'postmaster.pid')), { code: 'ENOENT' })
})

test('no PostgreSQL outlives a parent that was killed, and the next start takes the directory over', async (t) => {
  const dataDir = await directory(t)
  const child = await parent(t, dataDir)
  const pid = await serverPid(dataDir)
  assert.equal(runs(pid), true)
  child.kill('SIGKILL')
  const next = await start(dataDir)
  assert.deepEqual(await query(next.dsn(), 'SELECT 1 AS one'), [{ one: 1 }])
  await until(() => !runs(pid))
})

test('a directory in use is refused with the pid', async (t) => {
  const dataDir = await directory(t)
  await start(dataDir)
  await assert.rejects(startPostgres({ dataDir }), {
    message: `${dataDir} is in use by another PostgreSQL (pid ${await serverPid(dataDir)}): stop it, or name another data directory.`,
  })
})

test('a lock left behind does not block, even when its pid now belongs to another program', async (t) => {
  const dataDir = await directory(t)
  const server = await start(dataDir)
  const lock = await readFile(join(dataDir, 'postmaster.pid'), 'utf8')
  await server.stop()
  await writeFile(join(dataDir, 'postmaster.pid'), lock.replace(/^\d+/, String(process.pid)))
  const next = await start(dataDir)
  assert.deepEqual(await query(next.dsn(), 'SELECT 1 AS one'), [{ one: 1 }])
})

test('a data directory with a long path still gets a socket', async (t) => {
  const dataDir = join(await directory(t), 'x'.repeat(120))
  const server = await start(dataDir)
  assert.deepEqual(await query(server.dsn(), 'SELECT 1 AS one'), [{ one: 1 }])
  const socket = new URL(server.dsn()).searchParams.get('host')!
  assert.ok(Buffer.byteLength(socket) < 80)
  await server.stop()
  await assert.rejects(stat(socket), { code: 'ENOENT' })
})

test('a directory that holds something else is left alone', async (t) => {
  const dataDir = await directory(t)
  await mkdir(dataDir)
  await writeFile(join(dataDir, 'letter.txt'), 'dear')
  await assert.rejects(startPostgres({ dataDir }), /contains files but no PostgreSQL database/)
  await writeFile(join(dataDir, 'PG_VERSION'), '16\n')
  await assert.rejects(startPostgres({ dataDir }), /was written by PostgreSQL 16, the embedded one is 18/)
  assert.equal(await readFile(join(dataDir, 'letter.txt'), 'utf8'), 'dear')
})
