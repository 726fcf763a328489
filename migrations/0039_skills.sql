-- owner: plugins/skills
-- Skills of tenants. A name points to a version, and a version is what its digest says, for ever: sessions keep the one that they
-- began with.

CREATE TABLE skill_contents (
  tenant_id text NOT NULL,
  -- SHA-256, in hex, over the paths, contents and executable bits of the files.
  digest text NOT NULL,
  -- The front matter, and path, content type, digest, executable bit and size of each file.
  manifest jsonb NOT NULL,
  body text NOT NULL,
  -- The files one behind the other, in the order of the manifest.
  archive bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, digest)
);
-- They are compressed already, or small.
ALTER TABLE skill_contents ALTER COLUMN archive SET STORAGE EXTERNAL;

CREATE TABLE skills (
  tenant_id text NOT NULL,
  name text NOT NULL,
  digest text NOT NULL,
  source text NOT NULL CHECK (source IN ('user', 'imported', 'platform')),
  -- Counts the versions under this name since it was created.
  version integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name),
  CONSTRAINT skills_content FOREIGN KEY (tenant_id, digest) REFERENCES skill_contents (tenant_id, digest)
);
CREATE INDEX skills_digest ON skills (tenant_id, digest);

-- Platform skills that the tenant deleted: nothing brings them back.
CREATE TABLE skill_tombstones (
  tenant_id text NOT NULL,
  name text NOT NULL,
  deleted_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name)
);

-- Imports that were looked at and may be committed, by any conductor.
CREATE TABLE skill_stagings (
  tenant_id text NOT NULL,
  id text NOT NULL,
  digest text NOT NULL,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT skill_stagings_content FOREIGN KEY (tenant_id, digest) REFERENCES skill_contents (tenant_id, digest)
);
CREATE INDEX skill_stagings_expiry ON skill_stagings (tenant_id, expires_at);
CREATE INDEX skill_stagings_digest ON skill_stagings (tenant_id, digest);

-- The versions that sessions keep.
CREATE TABLE skill_pins (
  tenant_id text NOT NULL,
  session_id text NOT NULL,
  digest text NOT NULL,
  PRIMARY KEY (tenant_id, session_id, digest),
  CONSTRAINT skill_pins_session FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX skill_pins_digest ON skill_pins (tenant_id, digest);

ALTER TABLE skill_contents ENABLE ROW LEVEL SECURITY;
ALTER TABLE skill_contents FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON skill_contents
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE skills ENABLE ROW LEVEL SECURITY;
ALTER TABLE skills FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON skills
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE skill_tombstones ENABLE ROW LEVEL SECURITY;
ALTER TABLE skill_tombstones FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON skill_tombstones
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE skill_stagings ENABLE ROW LEVEL SECURITY;
ALTER TABLE skill_stagings FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON skill_stagings
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE skill_pins ENABLE ROW LEVEL SECURITY;
ALTER TABLE skill_pins FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON skill_pins
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
