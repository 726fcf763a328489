import { conflict, errorTable, invalidField, notFound, invalidRequest } from '#kernel'
import { webhookErrors } from '#contracts/webhooks'

export const publishingErrors = errorTable('publishing', {
  notPublished: { status: 404, message: 'This profile is not published.' },
  webhooksUnavailable: {
    status: 503,
    message: 'This installation has no webhooks; publish without one.',
  },
})

/** The refusals of settings with which an agent cannot be published. */
export const unfit = [invalidRequest, webhookErrors.invalidWebhook, publishingErrors.webhooksUnavailable] as const

export const unknownProfile = notFound
export const unknownKey = notFound
export const keyOver = () =>
  conflict({ message: 'This key was revoked or has expired; only a key that works can be replaced.' })
export const alreadyPublished = (name: string) =>
  conflict({ message: `The profile '${name}' is already published; change it with PATCH, or unpublish it first.` })
export const slugTaken = (slug: string) =>
  conflict({ message: `Another published agent has the slug '${slug}'; choose another one.` })

export const slugFixed = () => invalidField('body/slug', 'cannot be changed: unpublish and publish again')
export const badOrigin = (index: number, hint: string) => invalidField(`body/allowedOrigins/${index}`, hint)
