-- owner: plugins/idempotency
-- What clients' Idempotency-Keys stand for. Rows live for 24 h.

CREATE TABLE idempotency_keys (
  tenant_id text NOT NULL,
  -- Whose key it is and for what, e.g. `key_… chat`.
  scope text NOT NULL,
  key text NOT NULL,
  -- SHA-256 of the request body: the key of another body is refused.
  fingerprint bytea NOT NULL,
  -- Ids of what the request begins, chosen before it does: a repeat after a crash joins that instead of beginning more.
  plan json NOT NULL,
  -- Counts the requests that held the key, and fences them: one that was taken for dead can no longer change the row.
  attempt integer NOT NULL DEFAULT 1,
  -- The attempt that chose the plan.
  first_attempt integer NOT NULL DEFAULT 1,
  -- While a request is under way, renewed by its process; null when none is.
  locked_until timestamptz,
  -- json, not jsonb: text of a client or a model may hold \u0000, which jsonb refuses.
  answer json,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, scope, key)
) WITH (fillfactor = 80);
CREATE INDEX idempotency_keys_expired ON idempotency_keys (tenant_id, expires_at);

ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON idempotency_keys
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- For plugins/chat: up to which minute the public runs of a tenant are counted in its ingress meter, and the way to them.
CREATE TABLE ingress_watermarks (
  tenant_id text NOT NULL PRIMARY KEY,
  counted_until timestamptz NOT NULL
);
CREATE INDEX public_runs_created ON public_runs (tenant_id, created_at);
-- Made anew to be the youngest index: before a table's first ANALYZE they all seem to cost the same, and of equals the planner
-- takes the youngest. With the one above it would read all runs of the tenant for a look-up by id.
ALTER TABLE public_runs DROP CONSTRAINT public_runs_pkey;
ALTER TABLE public_runs ADD PRIMARY KEY (tenant_id, id);

ALTER TABLE ingress_watermarks ENABLE ROW LEVEL SECURITY;
ALTER TABLE ingress_watermarks FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON ingress_watermarks
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
