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

/** Where a conductor that begins a run in a session wakes those who follow it: `session:<tenant id>:<session id>`. */
export const sessionChannels = 'session:'
