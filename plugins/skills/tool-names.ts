/** What authors of skills call tools that the platform has under another name. */
const others: Readonly<Record<string, string>> = {
  Bash: 'shell',
  Read: 'read_file',
  Write: 'write_file',
  Edit: 'write_file',
  MultiEdit: 'write_file',
  Glob: 'list_files',
  Grep: 'list_files',
  LS: 'list_files',
  WebFetch: 'http_fetch',
  Task: 'delegate',
  Skill: 'skill_read',
}

/** The platform's name of a tool in `allowed-tools`, without the pattern of `Bash(git:*)`; one that it does not know stays as it is. */
export function platformTool(given: string): string {
  const bare = given.replace(/\(.*\)$/s, '')
  return others[bare] ?? bare
}
