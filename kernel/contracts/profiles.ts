import { type Static, Type } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import { ProfileApprovals, toolPattern } from './approvals.ts'
import type { TenantTx } from './database.ts'
import { EgressEntry } from './egress.ts'
import { ProfileMemory } from './memory.ts'
import { PinnedSkill, skillsOfTools } from './skills.ts'
import { mountName } from './vfs.ts'

const namePattern = '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'
const nameForm = new RegExp(namePattern)
/** False for text that cannot name a profile, so that a path with such text needs no look-up. */
export const isProfileName = (text: string): boolean => nameForm.test(text)

export const profileName = Type.String({
  pattern: namePattern,
  description: 'Name of the profile, unique in its tenant.',
})

const ProfileLimits = Type.Object(
  {
    maxSteps: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 200, description: 'Model calls in one run; 16 by default.' }),
    ),
    maxOutputTokens: Type.Optional(Type.Integer({ minimum: 1, description: 'Output tokens of one model call.' })),
    timeoutSeconds: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 86_400, description: 'Longest run; 600 by default.' }),
    ),
    maxCostCents: Type.Optional(
      Type.Integer({
        minimum: 1,
        description:
          'What a run and those it delegates to may cost together, as far as prices are known; no limit by default.',
      }),
    ),
    maxAttempts: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 10, description: 'With `onCrash: retry`: attempts in all; 3 by default.' }),
    ),
  },
  { additionalProperties: false },
)

/** The parts of the VirtualFS that the sessions of a profile may use. */
export const VfsAccess = Type.Object(
  {
    allowedMounts: Type.Optional(
      Type.Array(mountName, {
        maxItems: 100,
        uniqueItems: true,
        description: 'Names of mounts; by default any of the tenant.',
      }),
    ),
  },
  { additionalProperties: false },
)

/** What happens to a run whose conductor dies; with `retry` also when its runner or worker dies. */
export const onCrash = ['interrupt', 'resume', 'retry'] as const
export type OnCrash = (typeof onCrash)[number]

/** What a client writes. */
export const ProfileInput = Type.Object(
  {
    name: profileName,
    id: Type.Optional(Type.String({ pattern: '^[A-Za-z0-9_-]{1,128}$' })),
    runtime: Type.Optional(
      Type.String({
        pattern: '^[a-z][a-z0-9_-]{0,31}$',
        default: 'general',
        description: '`general`, `runtime_a`, `runtime_b`, or one that a plugin adds.',
      }),
    ),
    model: Type.Optional(
      Type.String({
        pattern: '^[a-z0-9-]+/.+$',
        maxLength: 200,
        default: 'builtin/demo',
        description: '`provider/model`.',
      }),
    ),
    instructions: Type.Optional(Type.String({ maxLength: 200_000, default: '' })),
    tools: Type.Optional(Type.Array(Type.String({ maxLength: 128 }), { maxItems: 200, default: [] })),
    skills: Type.Optional(
      Type.Array(Type.String({ maxLength: 128 }), {
        maxItems: 100,
        default: [],
        description: `Names of skills; \`${skillsOfTools}\` stands for those of the platform that explain the profile's tools.`,
      }),
    ),
    mcpServers: Type.Optional(Type.Array(Type.String({ maxLength: 128 }), { maxItems: 50, default: [] })),
    apps: Type.Optional(
      Type.Array(Type.String({ maxLength: 128 }), {
        maxItems: 50,
        uniqueItems: true,
        description:
          'Toolkits whose tools the agent has, called `<toolkit>__<tool>`: see `GET /api/apps`. If each end user has their own account, `metadata.end_user_id` of the run says whose is used.',
      }),
    ),
    workerMode: Type.Optional(Type.Union([Type.Literal('static'), Type.Literal('sandbox')], { default: 'static' })),
    sandbox: Type.Optional(
      Type.Object(
        {
          provider: Type.String(),
          template: Type.Optional(Type.String()),
          resources: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
        },
        { additionalProperties: false },
      ),
    ),
    egress: Type.Optional(
      Type.Array(EgressEntry, {
        maxItems: 50,
        description:
          'Hosts that the sandbox may reach through its runner, which adds headers with secrets; needs `workerMode: sandbox`. None by default. If several match a request, the first one counts.',
      }),
    ),
    vfs: Type.Optional(
      Type.Object(VfsAccess.properties, {
        additionalProperties: false,
        description:
          'The VirtualFS of its sessions: what the tools `vfs_*` reach, and what appears as files in their sandboxes. A profile that names such a tool and leaves this out may use every mount.',
      }),
    ),
    delegates: Type.Optional(
      Type.Array(Type.String({ maxLength: 64 }), {
        maxItems: 100,
        description: 'Profiles to which the tool `delegate` may give tasks; any of the tenant by default.',
      }),
    ),
    requireApproval: Type.Optional(
      Type.Array(toolPattern, {
        maxItems: 200,
        uniqueItems: true,
        description:
          'Tools whose calls wait for a person: names, in which `*` stands for any characters; those of apps and MCP servers are `<toolkit>__<tool>` and `mcp__<server>__<tool>`. See `GET /api/approvals`.',
      }),
    ),
    approvals: Type.Optional(ProfileApprovals),
    memory: Type.Optional(ProfileMemory),
    limits: Type.Optional(ProfileLimits),
    onCrash: Type.Optional(
      Type.Union(
        onCrash.map((one) => Type.Literal(one)),
        {
          description:
            'What becomes of a run whose conductor dies: it ends as `interrupted` (`interrupt`), or another conductor continues to read where the log ends (`resume`). `retry` does so too, and starts the run again when its worker or runner dies. The installation sets the default.',
        },
      ),
    ),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    pool: Type.Optional(
      Type.String({
        maxLength: 64,
        description: 'Name of the pool on whose runners new sessions are placed; any runner by default.',
      }),
    ),
    workerPlacement: Type.Optional(Type.Unknown({ description: 'Computed on read; ignored on write.' })),
  },
  { additionalProperties: false },
)
export type ProfileInput = Static<typeof ProfileInput>

/** A profile as it is stored, broadcast to runners, and copied into sessions as a snapshot. */
export const Profile = Type.Object({
  name: profileName,
  id: Type.String(),
  runtime: Type.String(),
  model: Type.String(),
  instructions: Type.String(),
  tools: Type.Array(Type.String()),
  skills: Type.Array(Type.String()),
  mcpServers: Type.Array(Type.String()),
  apps: Type.Optional(Type.Array(Type.String())),
  workerMode: Type.Union([Type.Literal('static'), Type.Literal('sandbox')]),
  sandbox: Type.Optional(Type.Unknown()),
  egress: Type.Optional(Type.Array(EgressEntry)),
  vfs: Type.Optional(VfsAccess),
  delegates: Type.Optional(Type.Array(Type.String())),
  requireApproval: Type.Optional(Type.Array(Type.String())),
  approvals: Type.Optional(ProfileApprovals),
  memory: Type.Optional(ProfileMemory),
  limits: ProfileLimits,
  onCrash: Type.Optional(Type.Union(onCrash.map((one) => Type.Literal(one)))),
  metadata: Type.Record(Type.String(), Type.Unknown()),
  pool: Type.Optional(Type.String()),
  /**
   * The runners and runtimes that the pool allows; an absent list allows all. Only snapshots have it: a session stays in the
   * pool in which it was created, also when it moves to another runner.
   */
  placement: Type.Optional(
    Type.Object({
      runners: Type.Optional(Type.Array(Type.String())),
      runtimes: Type.Optional(Type.Array(Type.String())),
    }),
  ),
  /** The skill versions that a session keeps. Only snapshots of profiles with skills have this field. */
  pinnedSkills: Type.Optional(Type.Array(PinnedSkill)),
  /** Absent only in snapshots and messages of a release without versions. */
  version: Type.Optional(
    Type.Integer({ minimum: 1, description: 'Counts all versions that were ever stored under this name.' }),
  ),
  createdAt: Type.String({ format: 'date-time' }),
  updatedAt: Type.String({ format: 'date-time' }),
})
export type Profile = Static<typeof Profile>

/**
 * The substrate that sessions of a profile need, for their worker or only for their tools: a name, or true for a runner's default. Undefined: they
 * need none.
 */
export function substrateOf({
  workerMode,
  sandbox,
}: Pick<Profile, 'workerMode' | 'sandbox'>): string | true | undefined {
  const provider = (sandbox as { readonly provider?: unknown } | undefined)?.provider
  if (typeof provider === 'string') return provider
  return workerMode === 'sandbox' || sandbox !== undefined ? true : undefined
}

/**
 * True for a runtime whose conversation can be restored from the logs of the session's runs, so that nothing is lost with the process that holds
 * the conversation. Such a runtime has no vendor handle. Vendor runtimes keep archives that only they can read. The runtime is recognized by name,
 * because specification 4.23 defines the forms of bundles by name.
 */
export const restoredFromLog = (runtime: string): boolean => runtime === 'general'

/** A profile with its `placement`, as a session is created from it. */
export interface PlacedProfile {
  readonly profile: Profile
  /** The revision of the tenant's profiles and pools when the profile was read. The store compares it when a run starts. */
  readonly revision: number
}

/** Read access to profiles, for the plugins that run or publish them. */
export interface Profiles {
  find(tenantId: string, name: string): Promise<Profile | undefined>
  /** Finds a profile. Unless `fresh`, it may come from a cache and be outdated. */
  findPlaced(tenantId: string, name: string, fresh?: boolean): Promise<PlacedProfile | undefined>
  /** Finds a profile inside the caller's transaction. */
  findIn(tx: TenantTx, name: string): Promise<Profile | undefined>
}
export const Profiles = capability<Profiles>('conductor.profiles')
