import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { capability, slot } from '../plugin.ts'
import type { TenantList } from './tenant-list.ts'

/**
 * A source of language models. The model contract is version 4 of the AI SDK's provider specification, so every provider package of that ecosystem
 * fits with one line.
 */
export interface ModelProvider {
  readonly contract: 'model/1'
  /** The model behind `provider/<modelId>`. Throws AppError 400 `unknown_model` for an id it does not serve. */
  model(modelId: string): LanguageModelV4
}

/** Deltas of one text that arrived together. They mean as many `text-delta` parts, without an object for each. None is empty. */
export interface TextDeltas {
  readonly type: 'text-deltas'
  readonly id: string
  readonly deltas: readonly string[]
}
export type ModelPart = LanguageModelV4StreamPart | TextDeltas

/** The parts of one answer, in batches of those that have arrived. A slow reader slows the model server down (back-pressure). */
export interface ModelParts {
  /** Resolves to at least one part, or to undefined at the end. After all parts that arrived, it rejects with the error that cut the answer short. */
  next(): Promise<readonly ModelPart[] | undefined>
  /** Ends the call and its connection at any point. Does nothing when the call is over. */
  close(): void
}

/** A model may offer its parts without a web stream, which would cost more than a short answer itself. */
export interface DirectModel extends LanguageModelV4 {
  /** Gives the same parts and rejections as `doStream`, and ends when `abortSignal` aborts. */
  doOpen(options: LanguageModelV4CallOptions): Promise<ModelParts>
}

/** One call of a model. */
export type OpenModel = DirectModel['doOpen']

/** Keyed by the provider name that a profile's `model` starts with. */
export const Models = slot<ModelProvider>('sidecar.models')
/** The tenants that may use a provider's models, by the provider's name. A provider that is not listed serves every tenant. */
export const ModelTenants = slot<TenantList>('sidecar.model-tenants')

export interface ModelProviderContext {
  /** Uses keep-alive connections to model servers, which are closed when the role stops. Pass it to the provider package. */
  readonly fetch: ModelFetch
  /** For a provider that reads answers itself. In a sandbox worker its requests go through `egress`. */
  readonly post: ModelPost
  /** Set in a sandbox worker: calls go to this address with this fetch, and the runner adds the key. */
  readonly egress: { readonly baseUrl: string; readonly fetch: ModelFetch } | undefined
  onStop(fn: () => Promise<void>): void
}

/** `fetch` as provider packages of the AI SDK need it: one POST with a text body, answered by a stream. */
export type ModelFetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>

/** Like `ModelFetch` but without web streams, for providers that read an answer themselves. Rejects when no answer began. */
export type ModelPost = (url: URL, request: ModelRequest) => Promise<ModelAnswer>

export interface ModelRequest {
  readonly headers: Readonly<Record<string, string>>
  /** Consecutive pieces of text. They are never joined, because they may be large. */
  readonly body: readonly string[]
  readonly signal?: AbortSignal | undefined
}

/** An answer whose head has arrived. A few reads of the socket are buffered for a slow reader, then the socket is paused. */
export interface ModelAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Resolves to all bytes that have arrived, at least one, or to undefined at the end. Rejects with the error that cut the answer short. */
  read(): Promise<readonly Uint8Array[] | undefined>
  /** Ends the answer at any point, and its connection with it. */
  close(): void
}

/**
 * Set in a worker: model calls go through the runner, which holds the keys, because a sandbox has neither keys nor a network. Absent in a static
 * sidecar.
 */
export interface ModelEgress {
  /** The address that replaces the provider's API root, including `/v1`. */
  baseUrl(provider: string): string
  /** The worker's current token, which vendor processes send as their API key. */
  token(): string
  /** A fetch that adds the token by itself. */
  readonly fetch: ModelFetch
}
export const ModelEgress = capability<ModelEgress>('worker.model-egress')
