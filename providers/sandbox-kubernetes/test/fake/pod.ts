import { setTimeout as wait } from 'node:timers/promises'
import type { StandInMachine } from '#testing'

export type PodPhase = 'Pending' | 'Running' | 'Succeeded' | 'Failed'

export interface PodOptions {
  readonly name: string
  readonly machine: StandInMachine
  /** What the image runs; undefined: there is no such image to pull. */
  readonly command: readonly string[] | undefined
  readonly restartPolicy: string
  /** The data of the secret that the container's environment is from; undefined: it is not there yet. */
  secret(): Readonly<Record<string, string>> | undefined
}

/** A pod on its node: one container, whose processes are of this machine. */
export interface Pod {
  readonly phase: PodPhase
  /** How often its container was started. */
  readonly starts: number
  terminate(): Promise<void>
}

/** As long as a node looks again for what a container lacks; it is seconds in reality. */
const lookMs = 20
/** Shorter than what the manifest says, so that tests are. */
const graceMs = 300

export function startPod({ name, machine, command, restartPolicy, secret }: PodOptions): Pod {
  let phase: PodPhase = 'Pending'
  let starts = 0
  const life = { ended: false }

  const runOnce = async (file: readonly string[], data: Readonly<Record<string, string>>): Promise<number> => {
    const given = Object.entries(data).map(([key, value]) => [key, Buffer.from(value, 'base64').toString('utf8')])
    const env = {
      // The image's, the runtime's, and what every container is told of its cluster.
      PATH: process.env['PATH'] ?? '',
      HOSTNAME: name,
      KUBERNETES_SERVICE_HOST: '10.96.0.1',
      KUBERNETES_SERVICE_PORT: '443',
      ...(Object.fromEntries(given) as Record<string, string>),
    }
    const child = machine.start({ command: file, env })
    starts++
    phase = 'Running'
    const code = await new Promise<number>((resolve) => child.once('close', (exit) => resolve(exit ?? 137)))
    // With the first process of a container all others end.
    await machine.halt()
    return code
  }
  const live = async (): Promise<void> => {
    while (!life.ended) {
      const data = secret()
      if (command === undefined || data === undefined) {
        await wait(lookMs)
        continue
      }
      const code = await runOnce(command, data)
      if (life.ended) return
      if (code === 0 && restartPolicy !== 'Always') return void (phase = 'Succeeded')
      if (code !== 0 && restartPolicy === 'Never') return void (phase = 'Failed')
    }
  }
  const lived = live()
  return {
    get phase() {
      return phase
    },
    get starts() {
      return starts
    },
    async terminate() {
      life.ended = true
      await machine.terminate()
      const end = Date.now() + graceMs
      while ((await machine.pids()).length > 0 && Date.now() < end) await wait(10)
      await machine.halt()
      await lived
    },
  }
}
