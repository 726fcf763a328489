import { type Static, Type } from '@sinclair/typebox'
import type { Profile } from './profiles.ts'
import { mountName, type VfsClient, type VfsView } from './vfs.ts'

/** The tools by which agents use the VirtualFS. */
const vfsTools: readonly string[] = ['vfs_list', 'vfs_read', 'vfs_search', 'vfs_write']

/** True for a profile whose sessions use the VirtualFS, because it sets `vfs` or names one of the tools. */
export const usesVfs = ({ vfs, tools }: Pick<Profile, 'vfs' | 'tools'>): boolean =>
  vfs !== undefined || tools.some((tool) => vfsTools.includes(tool))

/** How much of the VirtualFS is copied into a sandbox: the limits for all mounts together, of which each gets an equal share. */
export const copyBounds = { files: 2_000, bytes: 64 * 1024 * 1024, fileBytes: 16 * 1024 * 1024 } as const

const Share = Type.Object({
  files: Type.Integer({ minimum: 0 }),
  bytes: Type.Integer({ minimum: 0 }),
  /** The most bytes of one file. */
  fileBytes: Type.Integer({ minimum: 0 }),
})
export type CopyShare = Static<typeof Share>

/** A mount as a sandbox copies it. */
export const TreeMount = Type.Object({
  name: mountName,
  readOnly: Type.Boolean(),
  /** In the order of the UTF-8 bytes of their paths, as many as the mount's share allows. */
  files: Type.Array(Type.Object({ path: Type.String(), bytes: Type.Integer(), etag: Type.String() })),
  /** False: files after the last one are left out. */
  complete: Type.Boolean(),
  /** Why the mount's files are unknown. The sandbox then keeps its copy unchanged. */
  unavailable: Type.Optional(Type.String()),
})
export type TreeMount = Static<typeof TreeMount>

/** What a session may see, for the copy in its sandbox. */
export const VfsTree = Type.Object({
  mounts: Type.Array(TreeMount),
  /** The share of each mount in the sandbox. */
  share: Share,
})
export type VfsTree = Static<typeof VfsTree>

type OfSession<F> = F extends (view: VfsView, ...more: infer A) => infer R ? (...more: A) => R : never
type Operation = 'mounts' | 'list' | 'read' | 'write' | 'remove' | 'search'

/** The VirtualFS as one session sees it. The first request opens the lease. All methods reject as `VfsClient` does. */
export interface SessionVfs extends Readonly<{ [K in Operation]: OfSession<VfsClient[K]> }> {
  tree(asked?: { readonly signal?: AbortSignal }): Promise<VfsTree>
}
