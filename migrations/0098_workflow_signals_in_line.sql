-- owner: plugins/workflows

-- Further signals of one name that nobody has waited for yet, in the order in which they came.
ALTER TABLE workflow_signals ADD COLUMN later text[] NOT NULL DEFAULT '{}';
