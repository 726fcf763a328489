import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { Webhook } from 'standardwebhooks'

const read = (path: string): Promise<string> => readFile(new URL(`../${path}`, import.meta.url), 'utf8')

test('docs/api.md: every request of it is one that the documents have', async () => {
  const text = await read('docs/api.md')
  const known: string[] = []
  for (const name of ['conductor', 'gateway']) {
    const { paths } = JSON.parse(await read(`docs/openapi/${name}.json`)) as { paths: Record<string, object> }
    for (const [path, operations] of Object.entries(paths)) {
      known.push(
        ...Object.keys(operations).map(
          (method) => `${method.toUpperCase()} ${path.replaceAll(/\{(?:\w+|\*)\}/g, '*')}`,
        ),
      )
    }
  }
  const asked = [...text.matchAll(/^curl (.*)$/gm)].map(([, rest]) => {
    const line = rest!.replace(/#.*$/, '')
    const url = /(?:\$(?:API|CHAT)|http:\/\/[\d.:]+)[^\s"?]*/.exec(line)![0]
    const path = url
      .replace('$API', '/api')
      .replace('$CHAT', '/v1/chat/*/*')
      .replace(/^http:\/\/[\d.:]+/, '')
      .replaceAll(/\$[A-Z_]+/g, '*')
      .replace(/(?<=\/profiles\/)\w+/, '*')
      .replace(/(?<=\/versions\/)\d+/, '*')
      .replace(/(?<=\/storage\/objects\/).*/, '*')
    const method = /-X (\w+)/.exec(line)?.[1] ?? (line.includes(" -d '") ? 'POST' : 'GET')
    return `${method} ${path}`
  })
  assert.ok(asked.length > 20)
  assert.deepEqual(
    asked.filter((one) => !known.includes(one)),
    [],
  )
})

test('docs/api.md: its sample verifies what was signed, and nothing else', async () => {
  const [, sample] = /```js\n(.*?)```/s.exec(await read('docs/api.md'))!
  const module = `data:text/javascript,${encodeURIComponent(sample!)}`
  const { verify } = (await import(module)) as {
    verify(secret: string, headers: Record<string, string>, body: string): unknown
  }
  const secret = `whsec_${randomBytes(32).toString('base64')}`
  const body = '{"type":"run.finished","data":{"runId":"run_1"}}'
  const at = new Date()
  const signed = (when: Date, by = secret): Record<string, string> => ({
    'webhook-id': 'msg_1',
    'webhook-timestamp': String(Math.floor(when.getTime() / 1000)),
    'webhook-signature': new Webhook(by).sign('msg_1', when, body),
  })
  assert.deepEqual(verify(secret, signed(at), body), JSON.parse(body))
  const other = signed(at, `whsec_${randomBytes(32).toString('base64')}`)
  const both = `${other['webhook-signature']} ${signed(at)['webhook-signature']}`
  assert.ok(verify(secret, { ...signed(at), 'webhook-signature': both }, body))
  assert.throws(() => verify(secret, other, body), /not from/)
  assert.throws(() => verify(secret, signed(at), body.replace('run_1', 'run_2')), /not from/)
  assert.throws(() => verify(secret, { ...signed(at), 'webhook-id': 'msg_2' }, body), /not from/)
  assert.throws(() => verify(secret, signed(new Date(at.getTime() - 600_000)), body), /too old/)
})
