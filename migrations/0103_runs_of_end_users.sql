-- owner: plugins/runs
-- Which runs name which end user. A column is there at once, but an index of it would hold up every start of a run while it is built over
-- all runs there are. So the entries are in a table of their own, which a trigger fills: runs that name nobody pay for its condition.
ALTER TABLE runs ADD COLUMN end_user_id text;

CREATE TABLE run_people (
  tenant_id text NOT NULL,
  -- SHA-256 of the id, which may be longer than an index takes.
  person bytea NOT NULL,
  run_id text NOT NULL
);
CREATE INDEX run_people_of ON run_people (tenant_id, person, run_id);
-- Last of the indexes, as in 0004_runs.sql: runs that are deleted are looked up by it.
ALTER TABLE run_people ADD PRIMARY KEY (tenant_id, run_id);
ALTER TABLE run_people ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_people FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_people
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

CREATE FUNCTION note_person() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO run_people (tenant_id, person, run_id)
  VALUES (NEW.tenant_id, sha256(convert_to(NEW.end_user_id, 'UTF8')), NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
CREATE TRIGGER note_person AFTER INSERT ON runs FOR EACH ROW WHEN (NEW.end_user_id IS NOT NULL) EXECUTE FUNCTION note_person();

-- Whoever deletes a run, a release before this one included, deletes its entry as well.
CREATE FUNCTION forget_people() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM run_people p USING gone WHERE p.tenant_id = gone.tenant_id AND p.run_id = gone.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER forget_people AFTER DELETE ON runs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION forget_people();

-- Up to where retention has entered the runs that were started without the column, by this release's predecessor or before. `infinity`: all.
CREATE TABLE run_people_entered (
  tenant_id text PRIMARY KEY,
  started_at timestamptz NOT NULL,
  run_id text NOT NULL
);
ALTER TABLE run_people_entered ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_people_entered FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_people_entered
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
