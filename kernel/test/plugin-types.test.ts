import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import { Base64Secret, capability, definePlugin, Duration, maybe, Settings, slot } from '#kernel'

const Greeting = capability<{ hello(): string }>('types.greeting')
const Names = slot<number>('types.names')

test('what a plugin promises and what it gets is checked by the compiler', () => {
  definePlugin({
    name: 'typed',
    config: Settings({ wait: Duration('1s'), key: Type.Optional(Base64Secret()) }),
    requires: { greeting: Greeting, absent: maybe(Greeting), names: Names },
    provides: { made: Greeting, more: Names },
    async setup({ config, deps }) {
      const wait: number = config.wait
      const key: Buffer | undefined = config.key
      // @ts-expect-error: it may be absent
      void deps.absent.hello
      const first: number | undefined = deps.names.get('a')
      return { made: { hello: () => deps.greeting.hello() }, more: { wait, first: first ?? key?.length ?? 0 } }
    },
  })
  definePlugin({
    name: 'forgetful',
    provides: { made: Greeting },
    // @ts-expect-error: `made` is promised and not returned
    setup: async () => ({}),
  })
  definePlugin({
    name: 'misshapen',
    provides: { made: Greeting },
    // @ts-expect-error: `hello` must return a string
    setup: async () => ({ made: { hello: () => 1 } }),
  })
})
