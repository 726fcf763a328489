-- owner: plugins/secrets

-- What everybody who administers a tenant may see of its secrets.
CREATE TABLE secrets (
  tenant_id text NOT NULL,
  name text NOT NULL,
  -- The environment variable or slot that the value is for.
  key text,
  -- The one that is given out.
  version integer NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name)
);

-- Each value under a data key of its own, and that under a master key, which is not here.
CREATE TABLE secret_versions (
  tenant_id text NOT NULL,
  name text NOT NULL,
  version integer NOT NULL,
  master_key text NOT NULL,
  wrapped_key bytea NOT NULL,
  ciphertext bytea NOT NULL,
  expires_at timestamptz,
  restored_from integer,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name, version),
  FOREIGN KEY (tenant_id, name) REFERENCES secrets (tenant_id, name) ON DELETE CASCADE
);
-- What still hangs on which master key.
CREATE INDEX secret_versions_master_key ON secret_versions (tenant_id, master_key, name, version);

-- Who read a secret: one row for each reader, written for many reads at once.
CREATE TABLE secret_reads (
  tenant_id text NOT NULL,
  name text NOT NULL,
  reader text NOT NULL,
  -- The version that was read last.
  version integer NOT NULL,
  reads bigint NOT NULL,
  first_read_at timestamptz NOT NULL,
  last_read_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, name, reader),
  FOREIGN KEY (tenant_id, name) REFERENCES secrets (tenant_id, name) ON DELETE CASCADE
);

ALTER TABLE secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE secrets FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON secrets
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE secret_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE secret_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON secret_versions
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE secret_reads ENABLE ROW LEVEL SECURITY;
ALTER TABLE secret_reads FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON secret_reads
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
