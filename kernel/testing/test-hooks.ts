// node:test finds the test that a call belongs to by a hook on everything asynchronous, each promise and its end included, which took a twelfth of the
// processor time of our tests. Its own kind of resource is enough, since async context follows what a test begins. Import this module before the first
// import of node:test. A version of Node that does not take the hook from here works as before, only more slowly.
import hooks from 'node:async_hooks'

type Init = NonNullable<hooks.HookCallbacks['init']>

const { AsyncLocalStorage, AsyncResource, createHook, executionAsyncId } = hooks
/** The id of the test under way. */
const current = new AsyncLocalStorage<number>()
/** What node:test wants to hear of each resource. It is told of tests only. */
const told: Init[] = []

class TestResource extends AsyncResource {
  constructor(...given: ConstructorParameters<typeof AsyncResource>) {
    super(...given)
    for (const init of told) init(this.asyncId(), given[0], this.triggerAsyncId(), this)
  }
  override runInAsyncScope<This, Result>(
    work: (this: This, ...args: unknown[]) => Result,
    self?: This,
    ...args: unknown[]
  ): Result {
    // Within, because the scope begins with the context in which the test was made.
    return super.runInAsyncScope(() => current.run(this.asyncId(), () => Reflect.apply(work, self as This, args)))
  }
}

Object.assign(hooks, {
  AsyncResource: TestResource,
  executionAsyncId: () => current.getStore() ?? executionAsyncId(),
  createHook: ({ init }: hooks.HookCallbacks) => ({
    enable: () => init && told.push(init),
    disable: () => init && told.splice(told.indexOf(init), 1),
  }),
})
await import('node:test')
// Whoever comes later gets the real ones.
Object.assign(hooks, { AsyncResource, createHook, executionAsyncId })
