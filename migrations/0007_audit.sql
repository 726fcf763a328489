-- owner: plugins/audit
-- Who changed what, for those who run a tenant. An entry is written before its request is handled; how it ended is a row of
-- its own, so that nothing here is ever changed.

CREATE TABLE audit_entries (
  tenant_id text NOT NULL,
  id text NOT NULL,
  -- Not now(): units of work of many requests may share a transaction.
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The key that asked, `bootstrap`, or the name of a command.
  actor_key text NOT NULL,
  actor_role text NOT NULL,
  action text NOT NULL,
  target text,
  -- These four are empty for a command, which is no request.
  method text,
  path text,
  request_id text,
  remote_address text,
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX audit_entries_newest ON audit_entries (tenant_id, at DESC, id DESC);

CREATE TABLE audit_outcomes (
  tenant_id text NOT NULL,
  entry_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  status integer NOT NULL,
  -- What was created, known only now.
  target text,
  PRIMARY KEY (tenant_id, entry_id),
  CONSTRAINT audit_outcomes_entry FOREIGN KEY (tenant_id, entry_id) REFERENCES audit_entries (tenant_id, id)
);

ALTER TABLE audit_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_entries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON audit_entries
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE audit_outcomes ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_outcomes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON audit_outcomes
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Privileges cannot say this: the application owns its tables, and an owner may do everything.
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- For each statement, because row security would hide other tenants' rows from a trigger for each row.
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_outcomes
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
ALTER TABLE audit_entries ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE audit_outcomes ENABLE ALWAYS TRIGGER append_only;
