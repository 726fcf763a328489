import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { copyFile, mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { providerOf } from './support.ts'

const run = promisify(execFile)

/** A certificate for 127.0.0.1 that is its own authority. Undefined after saying why: there is no openssl to make it. */
async function certify(t: TestContext, folder: string, name: string) {
  const [key, cert] = [join(folder, `${name}.key`), join(folder, `${name}.crt`)]
  const form = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '1']
  const who = ['-subj', `/CN=${name}`, '-addext', 'subjectAltName=IP:127.0.0.1']
  try {
    await run('openssl', [...form, ...who, '-keyout', key, '-out', cert])
    return { key, cert }
  } catch (cause) {
    const reason = 'there is no openssl on this machine to make a certificate'
    if (process.env['CI'] === 'true') throw new Error(reason, { cause })
    t.skip(reason)
    return undefined
  }
}

test('only an API server of the authority in the file is asked, also after the file was replaced', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-authority-'))
  t.after(() => rm(folder, { recursive: true }))
  const [ours, other] = [await certify(t, folder, 'ours'), await certify(t, folder, 'other')]
  if (!ours || !other) return
  const asked: string[] = []
  const server = createServer(
    { key: await readFile(ours.key), cert: await readFile(ours.cert) },
    (request, response) => {
      asked.push(request.headers.authorization ?? '')
      response.writeHead(404, { 'content-type': 'application/json' }).end('{}')
    },
  )
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const caFile = join(folder, 'ca.crt')
  await copyFile(other.cert, caFile)
  const apiUrl = `https://127.0.0.1:${(server.address() as AddressInfo).port}`
  const provider = await providerOf(t, { namespace: 'agents', apiUrl, token: 'token', caFile })
  const signal = AbortSignal.timeout(1_000)
  await assert.rejects(provider!.status('ao-0123456789abcdef', signal))
  assert.deepEqual(asked, [], 'the token was shown to nobody')
  await copyFile(ours.cert, caFile)
  assert.equal(await provider!.status('ao-0123456789abcdef'), 'gone')
  assert.deepEqual(asked, ['Bearer token'])
})
