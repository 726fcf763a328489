-- owner: plugins/apps

-- Accounts of tenants and of their end users in apps, with what their providers need to use them, encrypted.
CREATE TABLE app_connections (
  tenant_id text NOT NULL,
  id text NOT NULL,
  provider text NOT NULL,
  toolkit text NOT NULL,
  -- '' for the account of the tenant itself.
  end_user_id text NOT NULL,
  state text NOT NULL CHECK (state IN ('initiated', 'active', 'expired', 'failed', 'revoked')),
  -- Why it is not active, for people.
  reason text,
  secret text,
  renewable boolean NOT NULL DEFAULT false,
  -- Counts the grants: whoever renews an older one has renewed nothing.
  fence bigint NOT NULL DEFAULT 0,
  -- For so long nobody else renews it.
  leased_until timestamptz,
  expires_at timestamptz,
  -- When something has to be done about it: renewed while it still holds, taken back, or deleted.
  due_at timestamptz,
  failures integer NOT NULL DEFAULT 0,
  webhook_url text,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT app_connections_owner UNIQUE (tenant_id, toolkit, end_user_id)
);
CREATE INDEX app_connections_due ON app_connections (tenant_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX app_connections_person ON app_connections (tenant_id, end_user_id, id);

-- Owners of accounts who were sent to connect them, by a hash of what comes back with them. Each is used once.
CREATE TABLE app_authorizations (
  tenant_id text NOT NULL,
  state_hash text NOT NULL,
  connection_id text NOT NULL,
  -- What the provider has to know again, encrypted.
  kept text NOT NULL,
  return_url text,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, state_hash),
  CONSTRAINT app_authorizations_connection FOREIGN KEY (tenant_id, connection_id)
    REFERENCES app_connections (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX app_authorizations_of_connection ON app_authorizations (tenant_id, connection_id, expires_at);

ALTER TABLE app_connections ENABLE ROW LEVEL SECURITY;
ALTER TABLE app_connections FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON app_connections
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE app_authorizations ENABLE ROW LEVEL SECURITY;
ALTER TABLE app_authorizations FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON app_authorizations
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Which tenants have something due, so that nobody asks all of them every minute. Without row security: it says nothing else.
CREATE TABLE app_due_tenants (
  tenant_id text PRIMARY KEY,
  due_at timestamptz NOT NULL
);
CREATE INDEX app_due_tenants_due ON app_due_tenants (due_at);

CREATE FUNCTION note_app_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO app_due_tenants AS d (tenant_id, due_at) VALUES (NEW.tenant_id, NEW.due_at)
  ON CONFLICT (tenant_id) DO UPDATE SET due_at = excluded.due_at WHERE d.due_at > excluded.due_at;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_app_due AFTER INSERT OR UPDATE OF due_at ON app_connections FOR EACH ROW
  WHEN (NEW.due_at IS NOT NULL) EXECUTE FUNCTION note_app_due();

-- Webhooks tell of other things than the ends of runs: those bring what they tell.
ALTER TABLE webhook_deliveries ALTER COLUMN run_id DROP NOT NULL;
ALTER TABLE webhook_deliveries ADD COLUMN body text;
