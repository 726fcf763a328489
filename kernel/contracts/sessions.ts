import { type Static, Type } from '@sinclair/typebox'

export const sessionStatuses = ['idle', 'running', 'errored', 'shutdown'] as const
export type SessionStatus = (typeof sessionStatuses)[number]

/** The session DTO of specification 2.5. */
export const Session = Type.Object({
  id: Type.String(),
  profile: Type.String(),
  runtime: Type.String(),
  status: Type.Union([
    Type.Literal('idle'),
    Type.Literal('running'),
    Type.Literal('errored'),
    Type.Literal('shutdown'),
  ]),
  createdAt: Type.String({ format: 'date-time' }),
  lastUsedAt: Type.String({ format: 'date-time' }),
  lastPrompt: Type.Optional(Type.String()),
  lastRunStatus: Type.Optional(Type.String()),
  runCount: Type.Integer(),
})
export type Session = Static<typeof Session>

/** The channel `session:<tenant id>:<session id>`, on which a conductor that begins a run wakes the session's followers. */
export const sessionChannels = 'session:'
