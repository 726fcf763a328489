import { errorTable } from '#kernel'

/** Reasons why a tool did not do its work. The model gets the sentence as the tool's result. */
export const toolErrors = errorTable('tools', {
  calculation: { status: 400, about: 'The expression cannot be computed; the sentence says why.' },
  unknownTimeZone: {
    status: 400,
    message: 'No time zone has that name; use an IANA name such as Europe/Berlin.',
  },
  httpFetch: { status: 400, about: 'The page cannot be read; the sentence says why.' },
})
