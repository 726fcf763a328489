-- owner: plugins/api-keys

CREATE TABLE tenant_api_keys (
  tenant_id text NOT NULL,
  id text NOT NULL,
  label text NOT NULL,
  role text NOT NULL CHECK (role IN ('member', 'admin', 'owner')),
  key_hash bytea NOT NULL,
  -- The key that minted this one, `bootstrap`, or the name of a command.
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  last_used_at timestamptz,
  expires_at timestamptz,
  revoked_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  -- The hash leads, because authentication looks it up before it knows the tenant.
  CONSTRAINT tenant_api_keys_hash UNIQUE (key_hash, tenant_id)
);

ALTER TABLE tenant_api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON tenant_api_keys
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
-- Authentication finds out the tenant: whoever knows a key's hash may read that one row and no other.
CREATE POLICY key_lookup ON tenant_api_keys FOR SELECT
  USING (key_hash = decode(NULLIF(current_setting('app.auth_hash', true), ''), 'hex'));
