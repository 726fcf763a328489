-- owner: plugins/mcp-catalog

-- Access tokens of entries, encrypted. A row without a token is the lease of whoever gets one.
CREATE TABLE mcp_tokens (
  tenant_id text NOT NULL,
  name text NOT NULL,
  -- What the token was got with: an entry that asks otherwise by now has no token.
  basis text NOT NULL,
  token text,
  expires_at timestamptz,
  -- From then on it is replaced, while it still holds.
  due_at timestamptz,
  -- Counts those who set out to get a token; what an earlier one brings is refused.
  lease bigint NOT NULL DEFAULT 0,
  leased_until timestamptz,
  failed_at timestamptz,
  failure text,
  PRIMARY KEY (tenant_id, name)
);

ALTER TABLE mcp_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE mcp_tokens FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON mcp_tokens
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
