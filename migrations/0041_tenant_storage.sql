-- owner: plugins/limits
-- What the rows of each tenant take, in bytes: added up by the processes that write them, counted anew every night.
CREATE TABLE tenant_storage (
  tenant_id text PRIMARY KEY,
  bytes bigint NOT NULL CHECK (bytes >= 0),
  -- When it was last counted; null before the first time.
  counted_at timestamptz
) WITH (fillfactor = 50);
ALTER TABLE tenant_storage ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_storage FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON tenant_storage
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Whoever deletes rows frees what they took. The argument is the size of a row of `gone`; sizes of values are read from their
-- headers, not from where large ones are kept.
CREATE FUNCTION free_stored_bytes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  freed bigint;
BEGIN
  EXECUTE format('SELECT sum(128 + %s) FROM gone', TG_ARGV[0]) INTO freed;
  IF freed > 0 THEN
    UPDATE tenant_storage SET bytes = greatest(0, bytes - freed)
    WHERE tenant_id = NULLIF(current_setting('app.tenant_id', true), '');
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER free_stored_bytes AFTER DELETE ON run_events REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION free_stored_bytes('octet_length(lines)');
CREATE TRIGGER free_stored_bytes AFTER DELETE ON runs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION free_stored_bytes(
    'octet_length(prompt) + coalesce(octet_length(result), 0) + coalesce(pg_column_size(input), 0) + coalesce(pg_column_size(metadata), 0)');
CREATE TRIGGER free_stored_bytes AFTER DELETE ON sessions REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION free_stored_bytes('pg_column_size(profile_snapshot)');
CREATE TRIGGER free_stored_bytes AFTER DELETE ON session_state REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION free_stored_bytes('octet_length(bytes)');
CREATE TRIGGER free_stored_bytes AFTER DELETE ON messages REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION free_stored_bytes('octet_length(content) + coalesce(pg_column_size(attachments), 0)');
