// The client side of the Model Context Protocol: sessions with servers, and the tools that these list. It loads the library, so
// whoever needs it now and then imports it when the first server is to be asked.
export {
  failureOf,
  isTimeout,
  type McpAddress,
  type McpSession,
  noTimeout,
  openMcp,
  type Reason,
  reasonOf,
  whyUnavailable,
} from './session.ts'
export { digestOf, listTools, type McpTool, permittedTools, type ToolNames, toolNames } from './tools.ts'
