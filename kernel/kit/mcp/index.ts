// The client side of the Model Context Protocol: sessions with servers, and the tools that these list. It loads the library, so
// whoever needs it now and then imports it when the first server is to be asked.
export {
  failureOf,
  isForbidden,
  isTimeout,
  type McpAddress,
  type McpSession,
  noTimeout,
  openMcp,
  whyUnavailable,
} from './session.ts'
export { digestOf, listTools, type McpTool, permittedTools } from './tools.ts'
