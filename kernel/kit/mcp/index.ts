// The client side of the Model Context Protocol: sessions with servers, and the servers' tools. It loads the library, so a module that needs it
// rarely should import it when it contacts the first server.
export { McpEras } from './eras.ts'
export { failureOf, isTimeout, type Reason, reasonOf, whyUnavailable, withoutQuotes } from './failures.ts'
export { type McpAddress, type McpSession, openMcp, rehearseMcp, type ServerCall } from './session.ts'
export { digestOf, listTools, type McpTool, noTimeout, permittedTools, type ToolNames, toolNames } from './tools.ts'
