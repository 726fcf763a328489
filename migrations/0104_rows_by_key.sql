-- owner: plugins/database
-- Statements that know the key of a row find it by that key, whatever PostgreSQL knows of the size of the table (ADR 99).

-- A line is found by its session, and one of its runs among the few of that line. With one index there is none to take instead: while the
-- table is empty, as it is nearly always, two of them cost the same, and by the other one all lines of the tenant were read. A row of the
-- line is written only by the statement that inserts its run, whose id is unique.
ALTER TABLE run_queue DROP CONSTRAINT run_queue_run;
