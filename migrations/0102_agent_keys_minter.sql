-- owner: plugins/publishing

-- The API key that issued this one, or `bootstrap`. NULL: not known, because an earlier release issued it.
ALTER TABLE published_agent_keys ADD COLUMN created_by text;
-- An API key may be revoked with the keys of agents that it issued.
CREATE INDEX published_agent_keys_minted ON published_agent_keys (tenant_id, created_by);
