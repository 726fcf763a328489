-- owner: plugins/run-store-postgres
-- As for runs: a policy instead of a check constraint. Its rows are never changed.

ALTER TABLE run_events DROP CONSTRAINT run_events_count_check;
CREATE POLICY consistent ON run_events AS RESTRICTIVE FOR INSERT WITH CHECK (count > 0);
-- Compressing the log of a long answer costs a fraction with lz4, which not every server was built with.
DO $$
BEGIN
  ALTER TABLE run_events ALTER COLUMN lines SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
  NULL;
END
$$;
