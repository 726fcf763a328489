import assert from 'node:assert/strict'
import { test } from 'node:test'
import { definePlugin } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { RunDispatch } from '#contracts/runs'
import { Signers } from '#contracts/signing'
import { fake, testKernel } from '#testing'
import { conductorAddress } from '../peer.ts'
import conductorClient from '../index.ts'
import { recordingSigner } from './conductor.ts'

const entry = (config: Record<string, unknown>) => ({ name: 'conductor-client', plugin: conductorClient, config })

test('without a signing key the boot is refused with the variable to set', async (t) => {
  await assert.rejects(
    testKernel(t, [fake(Signers, {}), entry({ url: 'http://conductor:8081' })]),
    /set CHAT_GATEWAY_SIGNING_KEY_CURRENT/,
  )
})

test('it provides dispatch, its readiness, and what the ready line says of it', async (t) => {
  let dispatch: RunDispatch | undefined
  let checks: ReadonlyMap<string, unknown> | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { dispatch: RunDispatch, checks: ReadinessChecks },
    async setup({ deps }) {
      dispatch = deps.dispatch
      checks = deps.checks
      return {}
    },
  })
  const signers = fake(Signers, { 'chat-gateway': recordingSigner() })
  await testKernel(t, [signers, entry({ url: 'http://conductor:8081' }), peek])
  assert.deepEqual([...checks!.keys()], ['conductor'])
  assert.deepEqual(dispatch!.about, { conductor_internal_url: 'http://conductor:8081/', previous_signing_key: true })
})

test("addresses on a hosting platform's public domain, or on the gateway's own, are rejected at boot", async (t) => {
  const rules = {
    forbidden: ['apps.example.com'],
    internal: ['corp.example.net', '*.agents'],
    publicHost: 'chat.example.org:443',
  }
  for (const url of [
    'https://conductor-production.up.railway.app',
    'https://conductor.fly.dev',
    'https://conductor.onrender.com',
    'https://conductor.herokuapp.com',
    'https://conductor-abc.a.run.app',
    'https://conductor.azurewebsites.net',
    'https://conductor.vercel.app',
    'https://UP.RAILWAY.APP',
    'https://x.up.railway.app.:443/',
    'https://conductor.apps.example.com',
    'https://apps.example.com',
    'https://chat.example.org',
  ]) {
    assert.throws(() => conductorAddress(url, rules), /public domain/, url)
  }
  for (const url of [
    'http://conductor.example.org',
    'https://notinternal.com',
    'http://internal.example.com',
    'http://8.8.8.8:8081',
    'http://0x08080808',
    'http://172.32.0.1',
    'http://[2001:4860:4860::8888]',
    'http://[::ffff:8.8.8.8]',
    'http://notcorp.example.net',
  ]) {
    assert.throws(() => conductorAddress(url, rules), /private address, or add .* CONDUCTOR_PRIVATE_DOMAINS/, url)
  }
  for (const url of [
    'http://conductor:8081',
    'http://localhost:8081',
    'http://conductor.railway.internal:8081',
    'http://conductor.agents.svc.cluster.local:8081',
    'http://conductor.agents.svc',
    'http://conductor.agents',
    'http://127.0.0.1:8081',
    'http://10.0.0.3:8081',
    'http://172.31.255.1',
    'http://192.168.1.1',
    'http://100.100.1.1',
    'http://[::1]:8081',
    'http://[fd12::1]:8081',
    'http://[::ffff:10.0.0.1]',
    'http://notfly.dev.internal',
    'https://conductor.corp.example.net',
  ]) {
    assert.equal(conductorAddress(url, rules).href, new URL(url).href)
  }
  const signers = fake(Signers, { 'chat-gateway': recordingSigner() })
  const config = { url: 'https://c.intra.example', forbiddenDomains: 'a.example, *.intra.example' }
  await assert.rejects(testKernel(t, [signers, entry(config)]), /CONDUCTOR_INTERNAL_URL is on the public domain/)
  await testKernel(t, [signers, entry({ url: 'https://c.intra.example', privateDomains: 'a.example, intra.example' })])
})

test('what is no address of a server is refused with a sentence', () => {
  for (const url of ['', 'conductor:8081', 'ftp://conductor', 'http://user@conductor', 'http://conductor/?x=1']) {
    assert.throws(() => conductorAddress(url), /CONDUCTOR_INTERNAL_URL/, url)
  }
})
