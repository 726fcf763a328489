-- owner: plugins/workflows

-- Every run that begins counts those of its tenant that are not over (ADR 121). The index of open runs has children among them, of which there may be far
-- more, and no pending ones.
CREATE INDEX workflow_runs_unfinished ON workflow_runs (tenant_id, status) WHERE depth = 0 AND status < 3;
