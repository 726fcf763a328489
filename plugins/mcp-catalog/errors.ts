import { conflict, errorTable, invalidField, invalidRequest, notFound } from '#kernel'

export const catalogErrors = errorTable('mcp-catalog', {
  managedByConfig: {
    status: 409,
    about: 'The entry is from the role file of this installation: only its operator can change or delete it.',
  },
  notImportable: {
    status: 400,
    about: 'The server.json describes no server that can be reached; the sentence says why.',
  },
  digestNotOffered: {
    status: 409,
    about:
      'The server does not offer definitions with these digests, or no longer; `digests` lists them. List the tools again.',
  },
  mcpAddressRefused: { status: 400, message: 'The server has an address that may not be called.' },
  mcpUnreachable: { status: 502, retry: 'later', message: 'The server cannot be reached.' },
  mcpTimeout: { status: 504, retry: 'later', message: 'The server did not answer in time.' },
  mcpCertificateInvalid: { status: 502, message: "The server's certificate is not valid." },
  mcpUnauthorized: { status: 502, message: 'The server does not accept the credentials of the entry.' },
  mcpRefused: {
    status: 502,
    retry: 'later',
    about: 'The server answered with an error status, which is in `status`.',
  },
  mcpProtocol: { status: 502, message: 'The server does not answer as an MCP server.' },
  mcpTooLarge: {
    status: 502,
    message: "The definitions of the server's tools are larger than 2 MiB, or nested too deeply.",
  },
  mcpTokenRefused: {
    status: 502,
    about: 'The authorization server of the entry gave no access token; the sentence says why.',
  },
  mcpMethodNotAllowed: { status: 405, message: 'This endpoint offers no streams: send POST.' },
  mcpBusy: { status: 503, retry: true, message: 'Many MCP servers are being called at the moment; try again shortly.' },
})

/** The errors of a request to an MCP server. */
export const askErrors = [
  catalogErrors.mcpAddressRefused,
  catalogErrors.mcpUnreachable,
  catalogErrors.mcpTimeout,
  catalogErrors.mcpCertificateInvalid,
  catalogErrors.mcpUnauthorized,
  catalogErrors.mcpRefused,
  catalogErrors.mcpProtocol,
  catalogErrors.mcpTooLarge,
  catalogErrors.mcpTokenRefused,
  catalogErrors.mcpBusy,
] as const

export const unknownEntry = notFound
export const nameTaken = (name: string) =>
  conflict({ message: `There is an entry '${name}' already; PUT /api/mcp/catalog/${name} replaces it.` })
export const nameMismatch = () => invalidRequest({ message: 'The name in the body is not the one in the path.' })
export const managedByConfig = (name: string) =>
  catalogErrors.managedByConfig({
    message: `The entry '${name}' is from the role file of this installation; only its operator can change it.`,
  })
export const unstorable = (cause: unknown) =>
  invalidRequest({
    cause,
    message: 'The entry holds text that cannot be stored: a NUL character or half of a surrogate pair.',
  })
export const badUrl = (field: string, why: string) => invalidField(field, why)
