import { Type } from '@sinclair/typebox'
import { Gauge } from 'prom-client'
import { definePlugin, maybe, Settings } from '#kernel'
import { Database, presentDatabase } from '#contracts/database'
import { Kv } from '#contracts/kv'
import { largestOf, limitErrors, limitKinds, limitNames, TenantLimits } from '#contracts/limits'
import { KeptLimits } from './kept-limits.ts'

const limit = (name: (typeof limitNames)[number]) =>
  Type.Integer({
    minimum: 0,
    maximum: largestOf(name),
    default: limitKinds[name].default,
    description: limitKinds[name].about,
  })

/** The limits of each tenant: those of the role file, or those that an operator set for the tenant. Each plugin enforces the limits that concern it. */
export default definePlugin({
  name: 'limits',
  config: Settings(Object.fromEntries(limitNames.map((name) => [name, limit(name)]))),
  errors: limitErrors,
  requires: { database: maybe(Database), kv: maybe(Kv) },
  provides: { limits: TenantLimits },
  async setup({ config, deps, log, metrics, onStart, onStop }) {
    const limits = new KeptLimits(config as TenantLimits['defaults'], presentDatabase(deps.database), deps.kv, log)
    new Gauge({
      name: 'agent_orc_limits_ahead',
      help: 'How many times the average of its limits a tenant may go: 3, and down to 1 while this process is short of time.',
      registers: [metrics],
      collect() {
        this.set(limits.turns.factor)
      },
    })
    new Gauge({
      name: 'agent_orc_limits_giving_way',
      help: 'Tenants that have fewer turns in this process than their limits say, because it is short of time and they take more than others.',
      registers: [metrics],
      collect() {
        this.set(limits.turns.givingWay)
      },
    })
    onStart(() => limits.start())
    onStop(() => limits.stop())
    return { limits }
  },
})
