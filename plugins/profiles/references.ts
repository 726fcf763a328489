import type { McpServers } from '#contracts/mcp-servers'
import type { Skills } from '#contracts/skills'
import type { ProfileDocument } from './document.ts'
import { unknownMcpServer, unknownSkill } from './errors.ts'

/** Where the names in a profile lead. A catalogue that this role leaves out has nothing. */
export interface References {
  readonly skills: Skills | undefined
  readonly mcpServers: McpServers | undefined
}

/** Saying at once that a name is unknown is better than a run that goes without. Specification 4.3. */
export async function checkReferences(
  { skills, mcpServers }: References,
  tenantId: string,
  document: Pick<ProfileDocument, 'skills' | 'mcpServers'>,
): Promise<void> {
  const [skill] = await firstUnknown(skills, tenantId, document.skills)
  if (skill !== undefined) throw unknownSkill(skill)
  const [server] = await firstUnknown(mcpServers, tenantId, document.mcpServers)
  if (server !== undefined) throw unknownMcpServer(server)
}

const firstUnknown = async (
  catalogue: Pick<Skills, 'unknown'> | undefined,
  tenantId: string,
  names: readonly string[],
): Promise<readonly string[]> => (names.length === 0 ? [] : catalogue ? catalogue.unknown(tenantId, names) : names)
