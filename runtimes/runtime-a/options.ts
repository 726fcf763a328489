import type { RunEnvelope } from '#contracts/run-envelope'
import type { Conversation } from './conversations.ts'
import { environment } from './environment.ts'
import type { ModelServer } from './model-server.ts'
import type { Scratch } from './scratch.ts'
import type { Options } from './sdk.ts'
import type { ToolServers } from './tool-servers.ts'

export interface Place {
  readonly model: string
  readonly server: ModelServer
  readonly conversation: Conversation
  readonly scratch: Scratch
  readonly tools: ToolServers
  readonly spawn: Options['spawnClaudeCodeProcess']
}

/** Model calls of one run unless the profile says otherwise. */
const defaultMaxSteps = 16
export const maxStepsOf = ({ profile }: Pick<RunEnvelope, 'profile'>): number =>
  profile.limits.maxSteps ?? defaultMaxSteps

/** What keeps the vendor's agent to this run: no tools of its own, no files of this machine, nobody to be asked. */
const confined = {
  tools: [],
  settingSources: [],
  strictMcpConfig: true,
  permissionMode: 'dontAsk',
  // A prompt is text: otherwise `@/etc/passwd` in it would be replaced by that file, and `/name` be a command.
  verbatimPrompts: true,
  includePartialMessages: true,
} as const

export function optionsOf(envelope: RunEnvelope, place: Place): Options {
  const { conversation, scratch, server, tools } = place
  const { profile, responseFormat } = envelope
  return {
    ...confined,
    ...(conversation.resumes ? { resume: conversation.id } : { sessionId: conversation.id }),
    ...(responseFormat ? { outputFormat: { type: 'json_schema' as const, schema: responseFormat.schema } } : {}),
    cwd: scratch.work,
    env: { ...tools.env, ...environment(conversation.folder, scratch, server, profile.limits) },
    model: place.model,
    maxTurns: maxStepsOf(envelope),
    systemPrompt: profile.instructions,
    mcpServers: tools.config,
    allowedTools: tools.allowed,
    spawnClaudeCodeProcess: place.spawn,
  }
}
