-- owner: plugins/runs
-- What the last model call of a conversation read and wrote: a call that is cut off is charged for what it reads, and nobody else knows how much
-- of it is history.
ALTER TABLE sessions ADD COLUMN IF NOT EXISTS context_tokens bigint;
