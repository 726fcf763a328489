-- owner: plugins/auth
-- Where a key may be used from, and what it minted.

ALTER TABLE tenant_api_keys
  -- Anywhere when NULL. What a key mints has the same networks, or some within them.
  ADD COLUMN allowed_addresses cidr[] CHECK (cardinality(allowed_addresses) BETWEEN 1 AND 50);
-- A key is revoked with all that it minted, and a member's keys are counted.
CREATE INDEX tenant_api_keys_minted ON tenant_api_keys (tenant_id, created_by);
