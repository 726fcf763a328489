-- owner: plugins/mcp-catalog

-- External MCP servers that a tenant has entered itself. Those of the role file are in no table.
CREATE TABLE mcp_entries (
  tenant_id text NOT NULL,
  name text NOT NULL,
  active boolean NOT NULL,
  -- Everything else of the entry. Secrets are references in it.
  entry jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name)
);

-- What an entry's server said of itself when it was asked last, and what of that was accepted. Entries of the role file have one for
-- each tenant that uses them, so there is no foreign key.
CREATE TABLE mcp_discoveries (
  tenant_id text NOT NULL,
  name text NOT NULL,
  -- Whom it is about: an entry that leads elsewhere by now has no discovery.
  address text NOT NULL,
  server jsonb,
  -- Definitions with their digests, in the order of the server.
  tools jsonb,
  tool_count integer,
  listed_at timestamptz,
  -- Digests of accepted definitions by the names of tools.
  accepted jsonb NOT NULL DEFAULT '{}',
  latency_ms integer,
  succeeded_at timestamptz,
  failed_at timestamptz,
  failure jsonb,
  PRIMARY KEY (tenant_id, name)
);

ALTER TABLE mcp_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE mcp_entries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON mcp_entries
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE mcp_discoveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE mcp_discoveries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON mcp_discoveries
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
