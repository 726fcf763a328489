-- owner: plugins/webhooks

-- Where the end of a run is told. The column is null for nearly every run, and then the trigger below costs nothing.
ALTER TABLE runs ADD COLUMN webhook_url text;
-- Where the ends of a published agent's runs are told.
ALTER TABLE published_agents ADD COLUMN webhook_url text;

-- The outbox: one message per run, which is delivered until somebody takes it or it is given up.
CREATE TABLE webhook_deliveries (
  tenant_id text NOT NULL,
  id text NOT NULL,
  run_id text NOT NULL,
  url text NOT NULL,
  state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
  attempts integer NOT NULL DEFAULT 0,
  -- When it is due. A conductor that takes it moves this on first, so that one that dies in between only delays it.
  next_at timestamptz NOT NULL DEFAULT now(),
  last_status integer,
  last_error text,
  created_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT webhook_deliveries_run UNIQUE (tenant_id, run_id)
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (tenant_id, next_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (tenant_id, created_at DESC, id DESC);

-- Signing secrets are derived, not stored: this is how often a tenant's was changed.
CREATE TABLE webhook_secrets (
  tenant_id text NOT NULL,
  version integer NOT NULL,
  rotated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id)
);

ALTER TABLE webhook_deliveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_deliveries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON webhook_deliveries
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE webhook_secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_secrets FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON webhook_secrets
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Whoever ends a run, its message is written by the same transaction: there is no end without one, and none without an end.
CREATE FUNCTION tell_webhook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO webhook_deliveries (tenant_id, id, run_id, url)
  VALUES (NEW.tenant_id, 'msg_' || replace(gen_random_uuid()::text, '-', ''), NEW.id, NEW.webhook_url)
  ON CONFLICT DO NOTHING;
  PERFORM pg_notify('webhooks', NEW.tenant_id);
  RETURN NULL;
END
$$;
CREATE TRIGGER tell_webhook AFTER UPDATE OF finished_at ON runs FOR EACH ROW
  WHEN (NEW.webhook_url IS NOT NULL AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
  EXECUTE FUNCTION tell_webhook();
