-- owner: plugins/chat
-- As for runs: a policy instead of check constraints.

ALTER TABLE public_runs DROP CONSTRAINT public_runs_status_check, DROP CONSTRAINT public_runs_finished;
CREATE POLICY consistent ON public_runs AS RESTRICTIVE FOR UPDATE USING (true) WITH CHECK (
  CASE WHEN finished_at IS NULL THEN status IN ('dispatching', 'running') ELSE status IN ('ok', 'error', 'lost') END);
