import { conflict, notFound } from '#kernel'

export const unknownTenant = notFound
export const tenantExists = (id: string, deleted: boolean) =>
  conflict({
    message: deleted
      ? `The tenant '${id}' was deleted; ids are never given twice. PATCH {"deleted": false} brings it back.`
      : `There is a tenant '${id}' already.`,
  })
export const undeletable = (id: string, why: string) =>
  conflict({ message: `The tenant '${id}' cannot be deleted: ${why}.` })
