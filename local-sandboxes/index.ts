// A small library of its own: what sandbox providers share that run workers on this machine.
export { type Folders, type Home, openHome } from './home.ts'
export { createProvider, type LocalSandbox, type SessionPlaces, type StartSandbox } from './provider.ts'
export { commandOf, Templates, workerEnvironment } from './order.ts'
export { signalTree, stopTree, treeOf } from './process-tree.ts'
export { tailOf } from './output.ts'
export { dataLimit } from './memory.ts'
