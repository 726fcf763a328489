import type { ModelEgress } from '#contracts/model'
import { unknownModel } from './errors.ts'

export interface ModelServer {
  /** Without `/v1`, which the vendor adds. */
  readonly baseUrl: string
  readonly apiKey: string
}

const provider = 'anthropic'

/** Where the vendor's process finds its models: in a sandbox worker the runner, which has the key. */
export function modelServer(
  { apiKey, baseUrl }: { readonly apiKey?: string; readonly baseUrl?: string },
  egress: ModelEgress | undefined,
): ModelServer {
  if (egress) return { baseUrl: unversioned(egress.baseUrl(provider)), apiKey: egress.token() }
  if (!apiKey && !baseUrl) {
    throw unknownModel({
      message: 'runtime_a has no model server here: set ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL or both.',
    })
  }
  // Without a key the vendor would ask somebody to log in.
  return { baseUrl: unversioned(baseUrl || 'https://api.anthropic.com'), apiKey: apiKey || 'none' }
}

/** The name that the vendor knows. Throws AppError `unknown_model` for another provider's. */
export function modelId(name: string): string {
  const id = name.startsWith(`${provider}/`) ? name.slice(provider.length + 1) : ''
  if (id === '' || id.startsWith('-')) {
    throw unknownModel({ message: `runtime_a runs models ${provider}/<name>, not '${name}'.` })
  }
  return id
}

const unversioned = (url: string): string => url.replace(/\/+$/, '').replace(/\/v1$/, '')
