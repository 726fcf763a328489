import type { Static } from '@sinclair/typebox'
import { createStandInMachine, type StandInMachine } from '#testing'
import type { Sandbox, Secret } from './documented.ts'
import { type Pod, startPod } from './pod.ts'

export interface Condition {
  readonly type: string
  readonly status: 'True' | 'False'
  readonly reason: string
  readonly observedGeneration: number
}

export interface FakeSandbox {
  readonly uid: string
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly manifest: Static<typeof Sandbox>
  mode: 'Running' | 'Suspended'
  deleted: boolean
  shutdownTime: string | undefined
  generation: number
  /** What its volume and its pod are on this machine. */
  machine: StandInMachine | undefined
  pod: Pod | undefined
  /** As its status shows it: the controller writes that down a little later than it is. */
  conditions: Condition[]
  /** Looks until the next change is written down. */
  lag: number
}

export interface ControllerOptions {
  /** What images run. */
  readonly images: Readonly<Record<string, readonly string[]>>
  readonly statusLag: number
  secretOf(name: string): Static<typeof Secret> | undefined
}

/** What makes the objects of agent-sandbox true. */
export interface Controller {
  reconcile(sandbox: FakeSandbox): void
  /** One look at the status, which may be written down meanwhile. */
  look(sandbox: FakeSandbox): void
  /** Ends the pod and the volume of an object that is not there any more. */
  collect(sandbox: FakeSandbox): Promise<void>
}

export function createController({ images, statusLag, secretOf }: ControllerOptions): Controller {
  const work = new WeakMap<FakeSandbox, Promise<void>>()
  /** One thing after the other, as a controller has it for each object. */
  const next = (sandbox: FakeSandbox, step: () => Promise<void>): Promise<void> => {
    const done = (work.get(sandbox) ?? Promise.resolve()).then(step)
    work.set(sandbox, done)
    return done
  }
  const start = async (sandbox: FakeSandbox): Promise<void> => {
    if (sandbox.pod || sandbox.mode !== 'Running') return
    const { spec } = sandbox.manifest.spec.podTemplate
    const [container] = spec.containers
    sandbox.pod = startPod({
      name: sandbox.name,
      machine: (sandbox.machine ??= await createStandInMachine(['/workspace', '/state'])),
      command: images[container!.image],
      restartPolicy: spec.restartPolicy,
      secret: () => secretOf(container!.envFrom[0]!.secretRef.name)?.data,
    })
  }
  const stop = async (sandbox: FakeSandbox): Promise<void> => {
    await sandbox.pod?.terminate()
    sandbox.pod = undefined
  }
  return {
    reconcile: (sandbox) =>
      void next(sandbox, async () => {
        if (sandbox.mode === 'Running') await start(sandbox)
        else await stop(sandbox)
      }),
    look(sandbox) {
      const actual = conditionsOf(sandbox)
      if (JSON.stringify(actual) === JSON.stringify(sandbox.conditions)) return
      if (sandbox.lag-- > 0) return
      sandbox.conditions = actual
      sandbox.lag = statusLag
    },
    collect: (sandbox) =>
      next(sandbox, async () => {
        await stop(sandbox)
        await sandbox.machine?.destroy()
        sandbox.machine = undefined
      }),
  }
}

function conditionsOf({ mode, pod, generation }: FakeSandbox): Condition[] {
  const condition = (type: string, holds: boolean, reason: string): Condition => ({
    type,
    status: holds ? 'True' : 'False',
    reason,
    observedGeneration: generation,
  })
  if (mode === 'Suspended') {
    return [
      condition('Suspended', !pod, pod ? 'PodTerminating' : 'PodTerminated'),
      condition('Ready', false, 'SandboxSuspended'),
    ]
  }
  const notSuspended = condition('Suspended', false, 'NotSuspended')
  if (pod?.phase === 'Succeeded' || pod?.phase === 'Failed') {
    const reason = `Pod${pod.phase}`
    return [notSuspended, condition('Ready', false, reason), condition('Finished', true, reason)]
  }
  const ready = pod?.phase === 'Running'
  return [notSuspended, condition('Ready', ready, ready ? 'DependenciesReady' : 'DependenciesNotReady')]
}
