// What tests of this repository and of third parties import: `agent-orc/testing`.
export {
  compilersOfTests,
  databasePlugin,
  diskStoragePlugin,
  entriesOf,
  fake,
  idempotencyPlugin,
  runStorePlugin,
  testKernel,
  type TestKernel,
} from './kernel.ts'
export { testConductor, type TestCaller, type TestConductor, testRole, type TestRoleOptions } from './kernel.ts'
export { operatedConductor, type TestAnswer, type TestBody, type TestCall } from './roles.ts'
export { blocksAnother, freshDatabase } from './database.ts'
export { countingTurns } from './event-loop.ts'
export { chunkOf } from './run-store-steps.ts'
export { testRunStore } from './run-store-suite.ts'
export { type Proxy, startProxy, type Verdict } from './proxy.ts'
export { redisForTests } from './database.ts'
export type { ModelReply, ModelRequestBody } from './model-reply.ts'
export { type ModelRequest, type ModelServer, type ModelServerOptions, startModelServer } from './model-server.ts'
export type { ResponsesRequestBody } from './responses-wire.ts'
export { collectRun, type EnvelopeFields, runtimeOf, terminalOf, testEnvelope, testProfile, textOf } from './runs.ts'
export { type RuntimeScript, type RuntimeSubject, testRuntime } from './runtime-suite.ts'
export { bareSidecar, sidecarAt } from './sidecar-link.ts'
export { type ModelScript, modelScript, startScriptedModels, testModelCalls, testModelProvider } from './model-suite.ts'
export { testToolContext, testToolProvider, type ToolCase, type ToolScript } from './tool-suite.ts'
export { type ScriptedWorker, startScriptedWorker, type WorkerScript } from './scripted-worker.ts'
export {
  type Launches,
  openLaunches,
  processesWith,
  sandboxProviderOf,
  type Started,
  suiteWorker,
  testOrder,
  until,
} from './sandbox-launches.ts'
export { type Poll, startSuiteRunner, type SuiteRunner, type SuiteSession } from './sandbox-launches.ts'
export { type SandboxPart, type SandboxSuiteOptions, testSandboxProvider } from './sandbox-suite.ts'
export { type ApiAnswer, type ApiFault, type ApiRequest, type StandInApi, startStandInApi } from './stand-ins.ts'
export { createStandInMachine, type StandInMachine } from './stand-ins.ts'
export { type AuthorizationServer, startAuthorizationServer } from './mcp-server.ts'
export {
  asOwnHosts,
  type ExternalServer,
  type ExternalTool,
  startExternalServer,
  startSseServer,
} from './mcp-server.ts'
export { type StandInTool, startToolServer, type ToolServer } from './stand-ins.ts'
export { newObject, oddKeys, testObjectBackend } from './object-suite.ts'
export { testVfs, type TestVfs, type TestVfsOptions } from './roles.ts'
