-- owner: plugins/auth
-- Keys that take the place of others.

-- The key that this one replaced: the two are revoked together, and a key is replaced once.
ALTER TABLE tenant_api_keys ADD COLUMN replaces text;
CREATE UNIQUE INDEX tenant_api_keys_replaces ON tenant_api_keys (tenant_id, replaces) WHERE replaces IS NOT NULL;

-- For ever when NULL.
ALTER TABLE published_agent_keys ADD COLUMN expires_at timestamptz;
