import { invalidRunnerUrl } from './errors.ts'

/**
 * A runner's base URL, without a slash at its end. Private and loopback addresses are what runners have: they live on the
 * network that operators keep closed, and only the signed plane and the configuration can name one. What an operator's
 * mistake could reach is held small all the same: one GET that follows no redirect and must answer as a runner does, and
 * never a link-local address, where clouds keep their credentials.
 */
export function checkRunnerUrl(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (!url || !/^https?:$/.test(url.protocol)) throw refuse(text, 'is not an http or https URL')
  if (url.username !== '' || url.password !== '') throw refuse(text, 'carries credentials')
  if (url.hash !== '' || url.search !== '') throw refuse(text, 'has a query or a fragment')
  // The URL parser has written every form of an IPv4 address as four decimal numbers by now.
  if (/^169\.254\.|^\[(fe[89ab]|::ffff:a9fe)/.test(url.hostname)) throw refuse(text, 'is a link-local address')
  return text.replace(/\/+$/, '')
}

const refuse = (text: string, why: string) =>
  invalidRunnerUrl({ message: `The runner URL '${text.replace(/\/\/[^/]*@/, '//…@')}' ${why}.` })
