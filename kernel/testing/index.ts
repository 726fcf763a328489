// What tests of this repository and of third parties import: `agent-orc/testing`.
export { fake, testKernel, type TestKernel } from './kernel.ts'
export { databasePlugin, freshDatabase } from './database.ts'
export { chunkOf, testRunStore } from './run-store-suite.ts'
export { redisForTests } from './redis.ts'
