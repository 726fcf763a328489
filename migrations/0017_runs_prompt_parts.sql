-- owner: plugins/run-store-postgres
-- What a run brings beside the text of its prompt.

-- json, not jsonb: text of a client may hold \u0000, which jsonb refuses. `input` goes to whoever executes the run, megabytes of
-- base64 maybe, and is dropped when the run ends; `input_info` is what summaries show of it.
ALTER TABLE runs
  ADD COLUMN input json,
  ADD COLUMN input_info json;
-- Images are compressed already.
ALTER TABLE runs ALTER COLUMN input SET STORAGE EXTERNAL;
