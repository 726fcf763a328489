// The client side of the Model Context Protocol: sessions with servers, and the tools that these list. It loads the library, so
// whoever needs it now and then imports it when the first server is to be asked.
export { McpEras } from './eras.ts'
export { failureOf, isTimeout, type Reason, reasonOf, whyUnavailable, withoutQuotes } from './failures.ts'
export { type McpAddress, type McpSession, openMcp, type ServerCall } from './session.ts'
export { digestOf, listTools, type McpTool, noTimeout, permittedTools, type ToolNames, toolNames } from './tools.ts'
