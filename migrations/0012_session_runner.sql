-- owner: plugins/run-store-postgres
-- Where a session's conversation is. Null: on the runner whose hash is in the session's id, as it was for every session before.

-- Written by the statement that ends a run, which writes the row anyway. Not indexed, so that such updates stay heap-only.
ALTER TABLE sessions ADD COLUMN runner_hash text;
