-- owner: plugins/runs
-- A profile's runs that are not `ok`: without it a count of them reads those of all profiles. Written by the roll-ups only.
CREATE INDEX run_marks_of_profile ON run_marks (tenant_id, status, profile, started_at, run_id);
