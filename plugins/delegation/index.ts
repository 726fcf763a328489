import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { RunnerDelegations } from '#contracts/delegation'
import { PlatformTools } from '#contracts/tools'
import { createDelegationBook } from './book.ts'
import { createDelegate } from './tool.ts'

/** The tool `delegate`: an agent gives a task to another one. Conductors run it; here is who waits. */
export default definePlugin({
  name: 'delegation',
  config: Settings({
    maxDepth: Type.Integer({
      default: 3,
      minimum: 0,
      maximum: 20,
      description: 'How many delegations may lead to one another; 0 allows none.',
    }),
  }),
  provides: { tools: PlatformTools, delegations: RunnerDelegations },
  async setup(ctx) {
    const book = createDelegationBook()
    return { tools: { delegate: createDelegate(book, ctx.config.maxDepth) }, delegations: book.delegations }
  },
})
