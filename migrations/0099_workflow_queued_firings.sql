-- owner: plugins/workflows

-- Each time of a schedule asks whether an earlier one waits for its turn, which read the whole history.
CREATE INDEX workflow_firings_queued ON workflow_firings (tenant_id, schedule_id) WHERE outcome = 'queued';
