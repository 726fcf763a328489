import { pathOf, workerTool } from './sandbox.ts'

export const readFile = workerTool({
  name: 'read_file',
  description: 'Reads a text file of the workspace. Long files are read in parts, by line.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Relative to the workspace.'),
      offset: { type: 'integer', minimum: 0, description: 'Lines to skip; none unless given.' },
      limit: { type: 'integer', minimum: 1, maximum: 10_000, description: 'Lines to read; 2,000 unless given.' },
    },
    required: ['path'],
    additionalProperties: false,
  },
})

export const writeFile = workerTool({
  name: 'write_file',
  description: 'Writes a text file of the workspace, with the folders it is in. Replaces what is there.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Relative to the workspace.'),
      content: { type: 'string', maxLength: 2_000_000 },
      append: { type: 'boolean', description: 'Adds to the end instead.' },
    },
    required: ['path', 'content'],
    additionalProperties: false,
  },
})

export const listFiles = workerTool({
  name: 'list_files',
  description: 'Lists files and folders of the workspace with their sizes.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Folder, relative to the workspace; the workspace itself unless given.'),
      depth: { type: 'integer', minimum: 1, maximum: 10, description: 'Levels of folders; 2 unless given.' },
    },
    additionalProperties: false,
  },
})
