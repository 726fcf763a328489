import { access, constants } from 'node:fs/promises'
import { Type } from '@sinclair/typebox'
import { CommaList, Duration, Settings } from '#kernel'
import { defineSandboxProvider } from '#contracts/sandbox'
import { ClusterAccess, KubernetesApi } from './api.ts'
import { KubernetesProvider } from './provider.ts'
import { PodTemplate } from './objects.ts'

/** The files of a pod's service account. */
const account = '/var/run/secrets/kubernetes.io/serviceaccount'

/** Runs workers in pods through kubernetes-sigs/agent-sandbox, for fleets larger than one machine. */
export default defineSandboxProvider({
  name: 'kubernetes',
  config: Settings({
    namespace: Type.Optional(
      Type.String({ description: 'The namespace of the sandboxes. Without it the provider is not offered.' }),
    ),
    apiUrl: Type.String({
      default: 'https://kubernetes.default.svc',
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Of the API server.',
    }),
    token: Type.Optional(Type.String({ description: 'Instead of a file.' })),
    tokenFile: Type.String({
      default: `${account}/token`,
      description: 'Read for every request, because the file is replaced from time to time.',
    }),
    caFile: Type.String({
      default: `${account}/ca.crt`,
      description: 'Authority of the API server; those of the system where there is no such file.',
    }),
    image: Type.Optional(Type.String({ description: 'For profiles that name no template.' })),
    images: Type.Optional(CommaList('Prefixes of the images that profiles may name as template; `*` for any.')),
    templates: Type.Optional(
      Type.Record(Type.String(), PodTemplate, { description: 'Pods that profiles may name as template.' }),
    ),
    workspaceSize: Type.String({ default: '1Gi', description: 'Size of the volume of a session.' }),
    lifetime: Duration('24h', 'A sandbox whose time no runner has extended for this long is deleted.'),
    storageClass: Type.Optional(
      Type.String({ description: 'Storage class of that volume; by default that of the cluster.' }),
    ),
  }),
  async create({ config, log, onStop }) {
    const { namespace, apiUrl, token, tokenFile, caFile, image, images, templates, lifetime, ...volume } = config
    if (!namespace) return undefined
    if (!token && !(await isReadable(tokenFile))) {
      log.warn(
        `the sandbox provider 'kubernetes' is not offered: ${tokenFile} cannot be read. In a pod it exists by itself; elsewhere set AGENT_ORC_KUBERNETES_API and AGENT_ORC_KUBERNETES_TOKEN_FILE`,
      )
      return undefined
    }
    const cluster = new ClusterAccess({ token: token || undefined, tokenFile, caFile })
    onStop(() => cluster.dispatcher.destroy())
    const provider = new KubernetesProvider({
      api: new KubernetesApi(cluster, apiUrl, namespace),
      lifetimeMs: lifetime,
      rules: {
        image: image || undefined,
        images: images ?? [],
        templates: templates ?? {},
        workspaceSize: volume.workspaceSize,
        storageClass: volume.storageClass || undefined,
      },
      log,
    })
    onStop(async () => provider.stop())
    return provider
  },
})

const isReadable = (file: string): Promise<boolean> =>
  access(file, constants.R_OK).then(
    () => true,
    () => false,
  )
