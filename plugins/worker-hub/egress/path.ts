/** Segments that mean the same to everybody who reads them: nothing encoded, nothing that leads elsewhere. */
const segment = /^(?!\.{1,2}$)[\w.~:@!$&'()*+,=-]+$/
const query = /^(\?[\x21\x24-\x7e]*)?$/

/**
 * What stands behind the first `skip` segments of a request's target, with its query; undefined when it is not surely below
 * whatever it is put behind.
 */
export function pathBelow(target: string, skip: number): { readonly path: string; readonly query: string } | undefined {
  // An absolute-form target names a host of its own.
  if (!target.startsWith('/')) return undefined
  const mark = target.indexOf('?')
  const [path, rest] = mark < 0 ? [target, ''] : [target.slice(0, mark), target.slice(mark)]
  const segments = path.split('/').slice(skip + 1)
  if (segments.length === 0 || !segments.every((one) => segment.test(one)) || !query.test(rest)) return undefined
  return { path: segments.join('/'), query: rest }
}
