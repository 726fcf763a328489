-- owner: plugins/mcp-catalog

-- What authorization servers know us as, where an entry names no client: registered once for each entry, encrypted.
CREATE TABLE mcp_oauth_clients (
  tenant_id text NOT NULL,
  name text NOT NULL,
  -- With whom and for what it was registered: an entry that leads elsewhere by now has no client.
  basis text NOT NULL,
  client text NOT NULL,
  -- When its secret ends, if the server says so.
  expires_at timestamptz,
  PRIMARY KEY (tenant_id, name)
);

ALTER TABLE mcp_oauth_clients ENABLE ROW LEVEL SECURITY;
ALTER TABLE mcp_oauth_clients FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON mcp_oauth_clients
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
