import { Counter, Gauge, type Registry } from 'prom-client'

export type CatalogMetrics = ReturnType<typeof createCatalogMetrics>

export const createCatalogMetrics = (metrics: Registry) => ({
  discoveries: new Counter({
    name: 'mcp_discoveries_total',
    help: 'MCP servers of the catalog that were asked for their tools, by what became of it.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  changes: new Counter({
    name: 'mcp_tool_changes_total',
    help: 'Tools of MCP servers that were not as they were the last time, by how, and by the policy of their entry.',
    labelNames: ['kind', 'policy'],
    registers: [metrics],
  }),
  tokens: new Counter({
    name: 'mcp_tokens_total',
    help: 'Access tokens that were asked of authorization servers for entries of the MCP catalog, by what became of it.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  calls: new Counter({
    name: 'mcp_catalog_calls_total',
    help: 'Calls of tools at the endpoint of the MCP catalog, by entry of the role file, or `of_tenants`, and by what became of it.',
    labelNames: ['entry', 'outcome'],
    registers: [metrics],
  }),
  /** `count`: how many there are now. */
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
