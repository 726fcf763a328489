-- owner: plugins/auth
-- What a key may use of its tenant's MCP catalog.

ALTER TABLE tenant_api_keys
  -- Names of entries; all when NULL. What a key mints has the same, or some of them.
  ADD COLUMN mcp_servers text[] CHECK (cardinality(mcp_servers) BETWEEN 1 AND 500),
  -- The only tools of an entry, by its name; all of an entry that is not in it.
  ADD COLUMN mcp_tool_permissions jsonb;
