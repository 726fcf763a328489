import type { TSchema } from '@sinclair/typebox'
import { Type } from '@sinclair/typebox'
import type { FastifyRequest, onRequestHookHandler } from 'fastify'
import type { Listed } from '#contracts/errors'
import { limitErrors } from '#contracts/limits'
import { linkErrors, type LinkedObjects, Upload } from '#contracts/linked-objects'
import { objectErrors } from '#contracts/object-store'
import { attachmentType, maxAttachmentBytes } from '#contracts/prompt'
import { invalidField } from '../contracts/http-errors.ts'
import { access } from '../http/access.ts'
import { failures } from '../http/answers.ts'
import type { App } from '../http/app.ts'
import { takeStreams } from './bodies.ts'

interface UploadRoute {
  readonly url: string
  /** Who may call the route, in the form of `access()`. */
  readonly who: string
  readonly tags: readonly string[]
  readonly params?: TSchema
  readonly refusals?: readonly Listed[]
  readonly onRequest?: onRequestHookHandler | ((...request: never[]) => Promise<void>)
  /** Undefined: this role stores no uploads. */
  readonly links: LinkedObjects | undefined
  tenantOf(request: FastifyRequest): string
}

/** Accepts attachment files as raw bytes while they arrive. Base64 in JSON is a third larger, and must be in memory as a whole. */
export function uploadRoute(
  app: App,
  { url, who, tags, params, refusals = [], onRequest, links, tenantOf }: UploadRoute,
) {
  // Use a separate scope, because other routes read JSON.
  void app.register(async (scope) => {
    takeStreams(scope)
    scope.post(
      url,
      {
        ...access(who),
        ...(onRequest ? { onRequest: onRequest as onRequestHookHandler } : {}),
        schema: {
          tags,
          summary: 'Upload an attachment',
          description:
            'The body is the file, at most 4 MiB; its `Content-Type` says what kind it is. A run then names it with `attachments: [{mediaType, upload: id}]`.',
          ...(params ? { params } : {}),
          consumes: ['application/octet-stream'],
          body: Type.Unsafe<unknown>(Type.String({ format: 'binary', description: 'Of any type.' })),
          response: {
            201: Upload,
            ...failures(
              ...refusals,
              linkErrors.emptyUpload,
              linkErrors.uploadTooLarge,
              linkErrors.uploadsUnavailable,
              linkErrors.tooManyUploads,
              objectErrors.uploadBroken,
              objectErrors.storageFull,
              objectErrors.storageUnavailable,
              objectErrors.storageMisconfigured,
              limitErrors.limitExceeded,
            ),
          },
        },
        // The body cannot be validated before it has arrived.
        validatorCompiler: () => () => true,
      },
      async (request, reply) => {
        try {
          if (!links) throw linkErrors.uploadsUnavailable()
          const { 'content-type': type = 'application/octet-stream', 'content-length': length = '0' } = request.headers
          const mediaType = type.split(';')[0]!.trim()
          if (!attachmentType.test(mediaType))
            throw invalidField('headers/content-type', 'is a media type, e.g. image/png')
          if (Number(length) > maxAttachmentBytes) throw linkErrors.uploadTooLarge()
          // The connection stays open, so that a refused client gets the answer.
          const body: AsyncIterable<Uint8Array> = request.raw.iterator({ destroyOnReturn: false })
          return reply.code(201).send(await links.upload(tenantOf(request), body, mediaType))
        } catch (error) {
          void reply.header('connection', 'close')
          throw error
        }
      },
    )
  })
}
