-- owner: plugins/storage
-- Large contents of runs that are in the object store: which there are, and which runs have them. The last run takes them with it.

CREATE TABLE linked_objects (
  tenant_id text NOT NULL,
  -- The digest of the content, or the id of an upload.
  key text NOT NULL,
  sha256 text NOT NULL,
  bytes bigint NOT NULL,
  content_type text NOT NULL,
  -- How many runs have it; the triggers below count.
  uses integer NOT NULL DEFAULT 0,
  -- Until then an upload waits for a run.
  expires_at timestamptz,
  PRIMARY KEY (tenant_id, key)
);
-- Nearly empty: what no run has goes with the next sweep.
CREATE INDEX linked_objects_unused ON linked_objects (tenant_id, key) WHERE uses = 0;

CREATE TABLE linked_object_runs (
  tenant_id text NOT NULL,
  -- Noted before the run begins.
  run_id text NOT NULL,
  key text NOT NULL,
  added_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, run_id, key)
);
CREATE INDEX linked_object_runs_added ON linked_object_runs (tenant_id, added_at);

ALTER TABLE linked_objects ENABLE ROW LEVEL SECURITY;
ALTER TABLE linked_objects FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON linked_objects
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE linked_object_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE linked_object_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON linked_object_runs
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Rows are locked in the order of their keys: whoever deletes many runs waits for nobody who waits for it.
CREATE FUNCTION count_linked_objects() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM linked_objects o WHERE (o.tenant_id, o.key) IN (SELECT c.tenant_id, c.key FROM changed c)
  ORDER BY o.tenant_id, o.key FOR NO KEY UPDATE;
  UPDATE linked_objects o SET uses = o.uses + CASE TG_OP WHEN 'INSERT' THEN c.runs ELSE -c.runs END
  FROM (SELECT tenant_id, key, count(*)::int AS runs FROM changed GROUP BY 1, 2) c
  WHERE o.tenant_id = c.tenant_id AND o.key = c.key;
  RETURN NULL;
END
$$;
CREATE TRIGGER count_uses AFTER INSERT ON linked_object_runs REFERENCING NEW TABLE AS changed
  FOR EACH STATEMENT EXECUTE FUNCTION count_linked_objects();
CREATE TRIGGER count_uses_less AFTER DELETE ON linked_object_runs REFERENCING OLD TABLE AS changed
  FOR EACH STATEMENT EXECUTE FUNCTION count_linked_objects();

-- Whoever deletes runs lets go of their objects, in the same transaction.
CREATE FUNCTION unlink_objects() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM linked_object_runs l USING gone WHERE l.tenant_id = gone.tenant_id AND l.run_id = gone.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER unlink_objects AFTER DELETE ON runs REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION unlink_objects();

-- What each tenant has in the object store: changed with each write by whoever makes it, and counted anew every night.
CREATE TABLE tenant_objects (
  tenant_id text PRIMARY KEY,
  bytes bigint NOT NULL,
  objects bigint NOT NULL,
  counted_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
ALTER TABLE tenant_objects ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_objects FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON tenant_objects
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
