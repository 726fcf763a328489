import type { Profile } from '#contracts/profiles'

/** A whole profile, with `fields` laid over it. */
export const testProfile = (name: string, fields: Partial<Profile> = {}): Profile => ({
  name,
  id: `prof_${name}`,
  runtime: 'general',
  model: 'builtin/demo',
  instructions: '',
  tools: [],
  skills: [],
  mcpServers: [],
  workerMode: 'static',
  limits: {},
  metadata: {},
  createdAt: '2026-01-01T00:00:00.000Z',
  updatedAt: '2026-01-01T00:00:00.000Z',
  ...fields,
})
