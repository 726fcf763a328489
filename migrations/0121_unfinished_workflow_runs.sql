-- owner: plugins/workflows

-- Every run that begins counts those of its level that are not over (ADR 121): the children of others are not read for that, and neither are pending
-- runs, of which there may be as many again. It stands in for the index of open runs, so that a run that moves writes as many entries as before.
DROP INDEX workflow_runs_open;
CREATE INDEX workflow_runs_unfinished ON workflow_runs (tenant_id, depth, status, moved_at) WHERE status < 3;
