import type { Processes } from './processes.ts'
import type { Target } from './targets.ts'

export interface ServiceContext {
  readonly processes: Processes
  readonly modelUrl: string
  readonly slowDeltas: number
  readonly profile: string | undefined
}

export async function startSingle(_context: ServiceContext): Promise<Target> {
  throw new Error('x')
}

export async function startFour(_context: ServiceContext): Promise<Target> {
  throw new Error('x')
}
