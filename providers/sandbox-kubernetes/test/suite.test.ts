import { testSandboxProvider } from '#testing'
import { type FakeCluster, startFakeCluster } from './fake/server.ts'
import { images, providerOf, settingsFor } from './support.ts'

let fake: FakeCluster | undefined

testSandboxProvider(
  'kubernetes',
  async (t) => {
    fake = await startFakeCluster(t, { images })
    return providerOf(t, settingsFor(fake))
  },
  {
    // What every container is told of its cluster.
    adds: ['HOSTNAME', 'KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT'],
    cannot: {
      copies: 'a pod is started anew when it is resumed',
      exit: 'a worker that fails is started again beside its files',
    },
    remains: () => fake!.remains(),
  },
)
