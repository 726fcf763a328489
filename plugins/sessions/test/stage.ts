import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { fake, runStorePlugin, testKernel } from '#testing'
import { ApiGuard, type Guard, InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import type { Profile } from '#contracts/profiles'
import { type Claim, RunStore } from '#contracts/run-store'
import { Fleet } from '#contracts/runner'
import { RunDispatch } from '#contracts/runs'
import sessions from '../index.ts'

/** The bearer names the tenant. */
const guard: Guard = {
  protect() {},
  callerOf: (request) => ({ tenantId: request.headers.authorization ?? 'acme', role: 'owner', keyId: 'tak_test' }),
}

export interface Around {
  readonly fleet?: Fleet
  readonly kv?: Kv
  /** Made with the run store of the kernel, which it follows. */
  readonly dispatch?: (store: RunStore) => RunDispatch
  /** On a port: streams are read over HTTP. */
  readonly listen?: boolean
}

/** The plugin with a run store, and with what else a test gives it. */
export async function stage(t: TestContext, { fleet, kv, dispatch, listen = false }: Around) {
  const got: { store?: RunStore } = {}
  const dispatching = definePlugin({
    name: 'dispatching',
    requires: { store: RunStore },
    provides: { dispatch: RunDispatch },
    async setup({ deps: { store } }) {
      got.store = store
      return { dispatch: dispatch?.(store) ?? ({} as RunDispatch) }
    },
  })
  const kernel = await testKernel(
    t,
    [
      sessions,
      await runStorePlugin(),
      dispatching,
      fake(Fleet, fleet ?? ({} as Fleet)),
      fake(Kv, kv ?? ({} as Kv)),
      fake(ApiGuard, guard),
      fake(InternalGuard, guard),
    ],
    { listen, listeners: ['conductor', 'internal'] },
  )
  const store = got.store!
  return {
    kernel,
    store,
    /** Begins a run of tenant acme in a session, which it creates when it is not there. */
    async begin(sessionId: string, runId = `run-${sessionId}`, profile = 'writer'): Promise<Claim> {
      const create = { profile: { name: profile, id: 'prof_1', runtime: 'general', limits: {} } as Profile }
      const known = (await store.getSession('acme', sessionId)) !== undefined
      const outcome = await store.start({
        tenantId: 'acme',
        runId,
        sessionId,
        task: { profile, prompt: 'hello' },
        ...(known ? {} : { create }),
      })
      if (outcome.kind !== 'started') throw new Error(`the run was not started: ${outcome.kind}`)
      return outcome.claim
    },
  }
}
