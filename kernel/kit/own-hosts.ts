import { Type } from '@sinclair/typebox'
import { everyTenant, type TenantList } from '../contracts/tenant-list.ts'
import { hostOf, isAmong } from './outbound.ts'

const host = '(\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*|\\[[0-9A-Fa-f:.]+\\])'
const tenants = '(\\*|[A-Za-z0-9][A-Za-z0-9_.-]*(\\|[A-Za-z0-9][A-Za-z0-9_.-]*)*)'
const entry = `${host}:[0-9]{1,5}=${tenants}`

/** The operator's own hosts, as `host:port=tenant|tenant`. The plugin gets a list; one text may contain several, separated by commas. */
export const OwnHosts = (description: string) =>
  Type.Transform(
    Type.Array(
      Type.String({
        pattern: `^(${entry}(,\\s*${entry})*)?$`,
        expects:
          'host:port=tenants, with commas between: hooks.internal:8443=acme|globex for two tenants, .corp.example:443=* for all; ' +
          'there is no entry for all ports',
      }),
      { default: [], description },
    ),
  )
    .Decode((list): OwnHost[] => list.flatMap((text) => text.split(',')).flatMap(ownHost))
    .Encode(() => [])

/** A host that may have a private address. */
export interface OwnHost {
  readonly host: string
  readonly port: string
  readonly tenants: TenantList
}

function ownHost(text: string): OwnHost[] {
  const [, name, port, ids] = /^\s*(.+):(\d+)=(.+)$/.exec(text) ?? []
  if (name === undefined || port === undefined || ids === undefined) return []
  const named = new Set(ids.split('|'))
  const list = { allows: (id: string) => named.has(id), empty: false }
  return [{ host: name.replace(/^\[|\]$/g, ''), port, tenants: ids === '*' ? everyTenant : list }]
}

/** Whether a URL leads to a host that the operator allows for this tenant, even if the host is private. */
export function isOwnHost(list: readonly OwnHost[], tenantId: string, url: URL): boolean {
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  return list.some((one) => one.port === port && isAmong(hostOf(url), [one.host]) && one.tenants.allows(tenantId))
}
