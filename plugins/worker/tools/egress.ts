import type { EgressAccess } from '#contracts/egress'

/** What is in the sandbox itself is asked without a proxy; so is its runner. */
const noProxy = 'localhost,127.0.0.1,::1'

/**
 * The environment by which programs find their way out. Some read only one spelling of a variable: curl no `HTTP_PROXY`, others no
 * `http_proxy`. What asks for https is told by the proxy to ask for http.
 */
export const egressVariables = ({ proxyUrl, baseUrl, key }: EgressAccess): Record<string, string> => ({
  http_proxy: proxyUrl,
  HTTP_PROXY: proxyUrl,
  https_proxy: proxyUrl,
  HTTPS_PROXY: proxyUrl,
  no_proxy: noProxy,
  NO_PROXY: noProxy,
  AGENT_ORC_EGRESS_URL: baseUrl,
  AGENT_ORC_EGRESS_KEY: key,
})
