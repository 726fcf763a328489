/** The version in quotes. `workerPlacement` depends on the fleet and is no part of what a writer could overwrite. */
export const etagOf = (version: number | undefined): string => `"${version}"`

/** The versions that an `If-Match` header allows; undefined: any. A weak tag never matches, nor one that is not ours. */
export function matchedVersions(ifMatch: string | undefined): number[] | undefined {
  const text = ifMatch?.trim()
  if (text === undefined || text === '*') return undefined
  return [...text.matchAll(/(W\/)?"([^"]*)"/g)].flatMap(([, weak, tag = '']) =>
    weak === undefined && /^[1-9]\d{0,8}$/.test(tag) ? [Number(tag)] : [],
  )
}
