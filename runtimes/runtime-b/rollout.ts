import { glob, open, rm, stat, truncate } from 'node:fs/promises'

/** `2026/11/21/rollout-2026-11-21T17-51-23-<thread id>.jsonl`: all that Codex needs to go on with a conversation. */
const form =
  /^\d{4}\/\d{2}\/\d{2}\/rollout-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl$/

export const isRolloutName = (name: string): boolean => form.test(name)
export const threadIdOf = (name: string): string => form.exec(name)![1]!

/** The conversations in a folder, relative to it; a session has one. */
export async function findRollouts(folder: string): Promise<string[]> {
  const names: string[] = []
  for await (const name of glob('*/*/*/*.jsonl', { cwd: folder })) if (isRolloutName(name)) names.push(name)
  return names.toSorted()
}

export const sizeOf = async (path: string): Promise<number> => (await stat(path)).size

/** Takes back what was written behind `size`; with nothing before it the whole conversation. */
export async function cutRollout(path: string, size: number): Promise<void> {
  if (size === 0) await rm(path, { force: true })
  else if ((await sizeOf(path)) > size) await truncate(path, size)
}

const newline = 0x0a
const readBytes = 64 * 1024

/** Drops a last line without an end: the process died while it wrote it, and would go on behind the torn half. */
export async function mendRollout(path: string): Promise<void> {
  const file = await open(path, 'r+')
  try {
    const { size } = await file.stat()
    const buffer = Buffer.alloc(readBytes)
    for (let end = size; end > 0;) {
      const start = Math.max(0, end - readBytes)
      const { bytesRead } = await file.read(buffer, 0, end - start, start)
      const last = buffer.subarray(0, bytesRead).lastIndexOf(newline)
      if (last >= 0) {
        if (start + last + 1 < size) await file.truncate(start + last + 1)
        return
      }
      end = start
    }
    await file.truncate(0)
  } finally {
    await file.close()
  }
}

/** The first line says whose conversation it is. */
export async function isRolloutOf(path: string, threadId: string): Promise<boolean> {
  const file = await open(path, 'r')
  try {
    for await (const line of file.readLines()) {
      const { type, payload } = JSON.parse(line) as { type?: unknown; payload?: { id?: unknown } | null }
      return type === 'session_meta' && payload?.id === threadId
    }
    return false
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof TypeError) return false
    throw error
  } finally {
    await file.close()
  }
}
