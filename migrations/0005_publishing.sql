-- owner: plugins/publishing

CREATE TABLE published_agents (
  tenant_id text NOT NULL,
  id text NOT NULL,
  profile_name text NOT NULL,
  -- The profile while the row is active: the foreign key holds exactly that long, and the history outlives the profile.
  active_profile text GENERATED ALWAYS AS (CASE WHEN unpublished_at IS NULL THEN profile_name END) STORED,
  slug text NOT NULL,
  visibility text NOT NULL DEFAULT 'private',
  auth_mode text NOT NULL DEFAULT 'api_key',
  allowed_origins text[] NOT NULL DEFAULT '{}',
  rate_limit_rpm integer NOT NULL CHECK (rate_limit_rpm BETWEEN 1 AND 100000),
  sync_max_duration_seconds integer NOT NULL CHECK (sync_max_duration_seconds BETWEEN 1 AND 600),
  expose_tool_events boolean NOT NULL DEFAULT false,
  enabled boolean NOT NULL DEFAULT true,
  created_at timestamptz NOT NULL DEFAULT now(),
  unpublished_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT published_agents_profile FOREIGN KEY (tenant_id, active_profile) REFERENCES profiles (tenant_id, name)
);
CREATE UNIQUE INDEX published_agents_active_slug ON published_agents (tenant_id, slug) WHERE unpublished_at IS NULL;
CREATE UNIQUE INDEX published_agents_active_profile ON published_agents (tenant_id, active_profile);

ALTER TABLE published_agents ENABLE ROW LEVEL SECURITY;
ALTER TABLE published_agents FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON published_agents
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- A deleted profile is unpublished with it; otherwise a later profile of the same name would be public at once.
CREATE FUNCTION unpublish_deleted_profile() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE published_agents SET unpublished_at = now()
  WHERE tenant_id = OLD.tenant_id AND active_profile = OLD.name;
  RETURN OLD;
END
$$;
CREATE TRIGGER unpublish BEFORE DELETE ON profiles FOR EACH ROW EXECUTE FUNCTION unpublish_deleted_profile();

CREATE TABLE published_agent_keys (
  tenant_id text NOT NULL,
  id text NOT NULL,
  published_id text NOT NULL,
  label text NOT NULL,
  key_hash bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  last_used_at timestamptz,
  revoked_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT published_agent_keys_agent FOREIGN KEY (tenant_id, published_id) REFERENCES published_agents (tenant_id, id),
  CONSTRAINT published_agent_keys_hash UNIQUE (tenant_id, key_hash)
);
CREATE INDEX published_agent_keys_of_agent ON published_agent_keys (tenant_id, published_id);

ALTER TABLE published_agent_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE published_agent_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON published_agent_keys
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
