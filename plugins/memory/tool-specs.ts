import type { ToolSpec } from '#contracts/tools'

/** The memory tools, as models see them. Runners offer the tools, and conductors execute them. */
export const memorySearch: ToolSpec = {
  name: 'memory_search',
  description:
    'Searches what is remembered from earlier conversations: facts, preferences, plans, decisions and events, each with its date and id.',
  inputSchema: {
    type: 'object',
    properties: {
      query: {
        type: 'string',
        minLength: 1,
        maxLength: 2_000,
        description: 'What you want to know, in words that the memory may have.',
      },
      limit: { type: 'integer', minimum: 1, maximum: 50, default: 8 },
      category: { type: 'string', minLength: 1, maxLength: 64, description: 'Only memories of this category.' },
      from: { type: 'string', maxLength: 40, description: 'Only of this day or later, e.g. 2026-05-01.' },
      to: { type: 'string', maxLength: 40, description: 'Only before this day.' },
      history: { type: 'boolean', default: false, description: 'Also what was so before and is not any more.' },
    },
    required: ['query'],
    additionalProperties: false,
  },
}

export const memorySave: ToolSpec = {
  name: 'memory_save',
  description:
    'Remembers one statement for later conversations. Write it so that it can be understood alone: with names instead of pronouns, and dates instead of "tomorrow". It takes the place of an older statement about the same thing.',
  inputSchema: {
    type: 'object',
    properties: {
      content: {
        type: 'string',
        minLength: 1,
        maxLength: 4_000,
        description: 'For example: Ann prefers window seats.',
      },
      category: {
        type: 'string',
        minLength: 1,
        maxLength: 64,
        description: 'A word by which it can be filtered, e.g. preference.',
      },
      eventAt: {
        type: 'string',
        maxLength: 40,
        description: 'When it happened or will happen, e.g. 2026-05-07, if that is known.',
      },
      supersedes: { type: 'string', minLength: 1, maxLength: 64, description: 'Id of the memory that this corrects.' },
    },
    required: ['content'],
    additionalProperties: false,
  },
}

export const memoryForget: ToolSpec = {
  name: 'memory_forget',
  description: 'Forgets one memory, with what it had taken the place of. Search for it first: its id is in the answer.',
  inputSchema: {
    type: 'object',
    properties: { id: { type: 'string', minLength: 1, maxLength: 64, description: 'Id of the memory, mem_…' } },
    required: ['id'],
    additionalProperties: false,
  },
}

export const memoryTools = [memorySearch, memorySave, memoryForget]
