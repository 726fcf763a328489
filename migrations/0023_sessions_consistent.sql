-- owner: plugins/run-store-postgres
-- As for runs: a policy instead of check constraints, and room for the release of a claim.

ALTER TABLE sessions DROP CONSTRAINT sessions_status_check, DROP CONSTRAINT sessions_claim;
CREATE POLICY consistent ON sessions AS RESTRICTIVE FOR UPDATE USING (true) WITH CHECK (
  CASE WHEN claim_run IS NULL THEN status IN ('idle', 'errored', 'shutdown') ELSE status = 'running' END);
ALTER TABLE sessions SET (fillfactor = 45);
