import { Value } from '@sinclair/typebox/value'
import { type Profile, ProfileInput } from '#contracts/profiles'
import type { ReplaceProfile } from './schema.ts'

/** The stored part of a profile: everything but its name, id, version and times. */
export type ProfileDocument = Omit<Profile, 'name' | 'id' | 'version' | 'createdAt' | 'updatedAt'>

type Filled = ReplaceProfile &
  Pick<ProfileDocument, 'runtime' | 'model' | 'instructions' | 'tools' | 'skills' | 'mcpServers' | 'workerMode'>

/** Takes from a body what is stored, with the schema's defaults for what it leaves out. */
export function documentOf(input: ReplaceProfile): ProfileDocument {
  const {
    runtime,
    model,
    instructions,
    tools,
    skills,
    mcpServers,
    workerMode,
    sandbox,
    delegates,
    limits,
    onCrash,
    metadata,
    pool,
  } = Value.Default(ProfileInput, { ...input }) as Filled
  return {
    runtime,
    model,
    instructions,
    tools,
    skills,
    mcpServers,
    workerMode,
    ...(sandbox === undefined ? {} : { sandbox }),
    ...(delegates === undefined ? {} : { delegates }),
    limits: limits ?? {},
    ...(onCrash === undefined ? {} : { onCrash }),
    metadata: metadata ?? {},
    ...(pool === undefined ? {} : { pool }),
  }
}
