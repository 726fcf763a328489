import { Counter, Gauge, type Registry } from 'prom-client'

export type CatalogMetrics = ReturnType<typeof createCatalogMetrics>

export const createCatalogMetrics = (metrics: Registry) => ({
  discoveries: new Counter({
    name: 'mcp_discoveries_total',
    help: 'Requests for the tool lists of MCP servers in the catalog, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  changes: new Counter({
    name: 'mcp_tool_changes_total',
    help: 'Changes of tools of MCP servers since their last discovery, by kind of change and policy of the entry.',
    labelNames: ['kind', 'policy'],
    registers: [metrics],
  }),
  tokens: new Counter({
    name: 'mcp_tokens_total',
    help: 'Requests for access tokens for entries of the MCP catalog, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  calls: new Counter({
    name: 'mcp_catalog_calls_total',
    help: 'Tool calls at the endpoint of the MCP catalog, by entry of the role file (`of_tenants` for entries of tenants) and outcome.',
    labelNames: ['entry', 'outcome'],
    registers: [metrics],
  }),
  /** `count` returns the present number of sessions. */
  upstreams: (count: () => number) =>
    new Gauge({
      name: 'mcp_catalog_sessions',
      help: 'Sessions with MCP servers that calls at the endpoint of the MCP catalog use.',
      registers: [metrics],
      collect() {
        this.set(count())
      },
    }),
})
