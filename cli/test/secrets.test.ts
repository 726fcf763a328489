import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import pg from 'pg'
import { freshDatabase } from '#testing'
import { randomKey, stage } from '../../plugins/secrets/test/stage.ts'
import { stage as appsStage, stageWithOAuth } from '../../plugins/apps/test/stage.ts'
import { createKeyring } from '../../plugins/secrets/envelope.ts'
import { countKeys, rewrap } from '../../plugins/secrets/rewrap.ts'
import { dumpOf } from '../../test/e2e/needles.ts'
import { run, start } from './spawned.ts'

const many = 70
const names = Array.from({ length: many }, (_, i) => `s${String(i).padStart(3, '0')}`)

/** Waits within the transaction that would wrap this secret anew, until the lock is let go of. */
const stopAt = (name: string): string => `
  CREATE FUNCTION wait_in_test() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    PERFORM pg_advisory_xact_lock(42);
    RETURN NEW;
  END $$;
  CREATE TRIGGER wait_in_test BEFORE UPDATE ON secret_versions FOR EACH ROW
    WHEN (NEW.name = '${name}') EXECUTE FUNCTION wait_in_test();
  SELECT pg_advisory_lock(42);`

async function connected(t: TestContext, dsn: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: dsn })
  client.on('error', () => {})
  await client.connect()
  t.after(() => client.end())
  return client
}

test('K3: a rewrap that is killed in the middle leaves every secret readable, and the next one goes on', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const [old, fresh] = [randomKey(), randomKey()]
  const keys = { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: fresh, AGENT_ORC_MASTER_KEY_PREVIOUS: old }

  const before = await stage(t, { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: old })
  const initech = await before.other('initech')
  for (const name of names) await before.owner('POST', '/api/secrets', { name, value: `value of ${name}` })
  await initech('POST', '/api/secrets', { name: 'theirs', value: 'value of theirs' })
  await initech('PUT', '/api/secrets/theirs', { value: 'value of theirs' })
  const during = await stage(t, keys)
  const readable = async (conductor: typeof before): Promise<void> => {
    for (const name of names)
      assert.equal((await conductor.resolve(`secret://${name}`)).body['value'], `value of ${name}`)
    const theirs = await conductor.resolve('secret://theirs', { tenant: 'initech' })
    assert.equal(theirs.body['value'], 'value of theirs')
  }
  const counted = async (command: string): Promise<Record<string, number>> => {
    const { code, stdout, stderr } = await run(t, ['secrets', command], keys)
    assert.equal(code, 0, stderr)
    const { keys: found } = JSON.parse(stdout) as { keys: { state: string; values: number }[] }
    return Object.fromEntries(found.map(({ state, values }) => [state, values]))
  }
  assert.deepEqual(await counted('keys'), { current: 0, previous: many + 2 })

  const lock = await connected(t, POSTGRES_DSN)
  await lock.query(stopAt('s050'))
  const killed = start(t, ['secrets', 'rewrap'], keys)
  await killed.says('40 values done')
  await readable(during)
  killed.child.kill('SIGKILL')
  await killed.finished()
  await lock.query('SELECT pg_advisory_unlock(42); DROP TRIGGER wait_in_test ON secret_versions')
  // What the killed process had begun is undone as a whole. The tenant that comes later is untouched.
  assert.deepEqual(await counted('keys'), { current: 40, previous: many + 2 - 40 })
  await readable(during)
  const meanwhile = await during.owner('PUT', '/api/secrets/s060', { value: 'value of s060' })
  assert.equal(meanwhile.status, 200)

  assert.deepEqual(await counted('rewrap'), { current: many + 3, previous: 0 })
  await readable(await stage(t, { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: fresh }))
  assert.deepEqual(await counted('rewrap'), { current: many + 3, previous: 0 })
})

test('K3: what plugins have sealed in tables of their own is moved as well, so the key before can go', async (t) => {
  const [old, fresh] = [randomKey(), randomKey()]
  const variables = { AGENT_ORC_MASTER_KEY: old, AGENT_ORC_MASTER_KEY_PREVIOUS: fresh }
  const s = await stageWithOAuth(t, undefined, { variables })
  await s.connect({ endUserId: 'ann' })
  const begun = await s.begin({ endUserId: 'bob' })
  await s.call('POST', '/api/secrets', { name: 'client', value: 'p@ss:word' })
  const oauth = {
    grant: 'client_credentials',
    clientId: 'agents',
    clientSecret: 'secret://client',
    tokenUrl: `${s.issuer.url}/token`,
  }
  await s.call('POST', '/api/mcp/catalog', { name: 'service', url: s.server.url, oauth })
  const connects = async (call = s.call) => (await call('POST', '/api/mcp/catalog/service/test')).body['ok']
  assert.equal(await connects(), true)
  const asked = s.issuer.asked.length

  const bytes = (key: string): Buffer => Buffer.from(key, 'base64')
  const keyring = createKeyring(bytes(fresh), bytes(old))
  const tables = async (key: string): Promise<string[]> =>
    [...(await dumpOf(s.dsn, 'default'))].flatMap(([table, rows]) => (rows.includes(key) ? [table] : [])).toSorted()
  const sealed = ['app_authorizations', 'app_connections', 'mcp_oauth_clients', 'mcp_tokens', 'secret_versions'].map(
    (table) => `public.${table}`,
  )
  assert.deepEqual(await tables(keyring.previous!), sealed)
  assert.deepEqual(await rewrap(s.database, keyring, () => {}), { done: 5, failed: 0 })
  assert.deepEqual([await tables(keyring.previous!), await tables(keyring.current)], [[], sealed])
  assert.deepEqual(
    (await countKeys(s.database, keyring)).map(({ values }) => values),
    [5, 0],
  )
  // Nothing is got anew where the key before is gone.
  const other = await appsStage(t, { dsn: s.dsn, own: s.own, variables: { AGENT_ORC_MASTER_KEY: fresh } })
  assert.deepEqual([(await s.read('ann', other.call)).status, await connects(other.call)], [200, true])
  assert.equal(s.issuer.asked.length, asked)
  const page = await other.browse(s.issuer.agree(String(begun.body['url'])))
  assert.ok([200, 303].includes(page.status), page.text)
  assert.equal((await s.read('bob', other.call)).status, 200)
  assert.equal(s.issuer.registered.length, 1)
})

test('what cannot be moved is said with a count, and everything else is moved', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const [old, fresh] = [randomKey(), randomKey()]
  const { owner, database } = await stage(t, { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: old })
  for (const name of ['a', 'b', 'c']) await owner('POST', '/api/secrets', { name, value: 'x' })
  await database.batch('default', [
    { text: `UPDATE secret_versions SET wrapped_key = decode(repeat('00', 60), 'hex') WHERE name = 'b'` },
    { text: `UPDATE secret_versions SET master_key = 'mk_0000000000000000' WHERE name = 'c'` },
  ])
  const keys = { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: fresh, AGENT_ORC_MASTER_KEY_PREVIOUS: old }
  const { code, stdout, stderr } = await run(t, ['secrets', 'rewrap'], keys)
  const { done, failed, keys: found } = JSON.parse(stdout)
  assert.deepEqual([code, done, failed], [1, 1, 1])
  assert.match(stderr, /agent-orc: values left on the previous key: 1 \(not readable with it: 1\)/)
  assert.deepEqual(
    found.map(({ state, values }: { state: string; values: number }) => [state, values]),
    [
      ['current', 1],
      ['previous', 1],
      ['unknown', 1],
    ],
  )
  const alone = await run(t, ['secrets', 'rewrap'], { POSTGRES_DSN, AGENT_ORC_MASTER_KEY: fresh })
  assert.deepEqual(
    [alone.code, alone.stderr],
    [1, 'agent-orc: set AGENT_ORC_MASTER_KEY_PREVIOUS to the key that is being replaced\n'],
  )
  const none = await run(t, ['secrets', 'keys'], { POSTGRES_DSN })
  assert.deepEqual([none.code, none.stderr], [1, 'agent-orc: set AGENT_ORC_MASTER_KEY\n'])
})
