-- owner: plugins/run-store-postgres
-- The run that delegated this one: {runId, depth, budgetCents?}.

ALTER TABLE runs ADD COLUMN parent jsonb;
-- Hardly any run has one; who asks for the children of a run reads only them.
CREATE INDEX runs_parent ON runs (tenant_id, (parent ->> 'runId')) WHERE parent IS NOT NULL;
