-- owner: plugins/profiles
-- Versions of profiles, pools, and the revision by which runners are told of both. Triggers do it, so that no writer can
-- forget it: a process of the previous release included, which knows nothing of them and goes on while this is applied.

CREATE TABLE pools (
  tenant_id text NOT NULL,
  id text NOT NULL,
  name text NOT NULL,
  description text,
  -- Hashes of runners, and runtimes. Null: any.
  runners text[],
  runtimes text[],
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT pools_name UNIQUE (tenant_id, name)
);

ALTER TABLE pools ENABLE ROW LEVEL SECURITY;
ALTER TABLE pools FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON pools
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The keys make "unknown pool" and "pool in use" true at commit, whatever happens at the same time.
ALTER TABLE profiles
  ADD COLUMN version integer NOT NULL DEFAULT 1,
  ADD COLUMN pool text GENERATED ALWAYS AS (document ->> 'pool') STORED,
  ADD CONSTRAINT profiles_pool FOREIGN KEY (tenant_id, pool) REFERENCES pools (tenant_id, name);

-- Append-only. Not tied to the profile: its numbers go on when it is deleted and created again, because sessions keep theirs.
CREATE TABLE profile_versions (
  tenant_id text NOT NULL,
  profile text NOT NULL,
  version integer NOT NULL,
  profile_id text NOT NULL,
  document jsonb NOT NULL,
  profile_created_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  -- The key that wrote it. Null: written before this table was there, or by a process of a release without it.
  created_by text,
  restored_from integer,
  PRIMARY KEY (tenant_id, profile, version)
);

-- The newest change of everything that runners are told, deletions included: a name without its row is a deleted one.
CREATE TABLE broadcast_changes (
  tenant_id text NOT NULL,
  kind text NOT NULL CHECK (kind IN ('profile', 'pool')),
  key text NOT NULL,
  revision bigint NOT NULL,
  PRIMARY KEY (tenant_id, kind, key),
  CONSTRAINT broadcast_changes_revision UNIQUE (tenant_id, revision)
);

-- Counts a tenant's changes. It is raised in the transaction of the change and keeps the row locked until that commits, so
-- the order of the numbers is the order of the commits, and whoever has read up to one has missed nothing below it. Here,
-- because row security hides everything else from a reader who asks for all tenants.
ALTER TABLE tenants ADD COLUMN broadcast_revision bigint NOT NULL DEFAULT 0;

-- What there is becomes version 1, and a change to tell. The owner of a table is bound by forced row security too, so it is
-- lifted for these statements; nobody sees that, because the transaction holds the table.
ALTER TABLE profiles NO FORCE ROW LEVEL SECURITY;
INSERT INTO profile_versions (tenant_id, profile, version, profile_id, document, profile_created_at, created_at)
SELECT tenant_id, name, 1, id, document, created_at, updated_at FROM profiles;
INSERT INTO broadcast_changes (tenant_id, kind, key, revision)
SELECT tenant_id, 'profile', name, row_number() OVER (PARTITION BY tenant_id ORDER BY updated_at, name) FROM profiles;
ALTER TABLE profiles FORCE ROW LEVEL SECURITY;
UPDATE tenants t SET broadcast_revision = c.newest
FROM (SELECT tenant_id, max(revision) AS newest FROM broadcast_changes GROUP BY tenant_id) c WHERE c.tenant_id = t.id;

ALTER TABLE profile_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE profile_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON profile_versions
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE broadcast_changes ENABLE ROW LEVEL SECURITY;
ALTER TABLE broadcast_changes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON broadcast_changes
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The row is locked before this runs, so concurrent writers of one profile count one after the other.
CREATE FUNCTION number_profile_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    NEW.version := OLD.version + 1;
    -- Not the start of the transaction: whoever waited for the row would seem to have written first.
    NEW.updated_at := greatest(clock_timestamp(), OLD.updated_at);
  ELSE
    NEW.version := 1 + coalesce((
      SELECT max(version) FROM profile_versions WHERE tenant_id = NEW.tenant_id AND profile = NEW.name
    ), 0);
  END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER number_version BEFORE INSERT OR UPDATE OF document ON profiles
  FOR EACH ROW EXECUTE FUNCTION number_profile_version();

-- Who writes is set by the writer for its transaction; a release that does not set it is nobody in particular.
CREATE FUNCTION keep_profile_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO profile_versions (tenant_id, profile, version, profile_id, document, profile_created_at, created_at, created_by, restored_from)
  VALUES (NEW.tenant_id, NEW.name, NEW.version, NEW.id, NEW.document, NEW.created_at, NEW.updated_at,
          NULLIF(current_setting('app.written_by', true), ''), NULLIF(current_setting('app.restored_from', true), '')::integer);
  RETURN NULL;
END
$$;
CREATE TRIGGER keep_version AFTER INSERT OR UPDATE OF document ON profiles
  FOR EACH ROW EXECUTE FUNCTION keep_profile_version();

-- Arguments: the kind, and the column that is its key. A tenant without a row has no keys, so nobody calls for it.
CREATE FUNCTION note_broadcast_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changed jsonb := to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END);
  newest bigint;
BEGIN
  UPDATE tenants SET broadcast_revision = broadcast_revision + 1 WHERE id = changed ->> 'tenant_id'
  RETURNING broadcast_revision INTO newest;
  IF newest IS NOT NULL THEN
    INSERT INTO broadcast_changes (tenant_id, kind, key, revision)
    VALUES (changed ->> 'tenant_id', TG_ARGV[0], changed ->> TG_ARGV[1], newest)
    ON CONFLICT (tenant_id, kind, key) DO UPDATE SET revision = EXCLUDED.revision;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER broadcast AFTER INSERT OR UPDATE OR DELETE ON profiles
  FOR EACH ROW EXECUTE FUNCTION note_broadcast_change('profile', 'name');
CREATE TRIGGER broadcast AFTER INSERT OR UPDATE OR DELETE ON pools
  FOR EACH ROW EXECUTE FUNCTION note_broadcast_change('pool', 'id');
