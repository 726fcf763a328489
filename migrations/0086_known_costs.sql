-- owner: plugins/runs
-- What is known of the cost of a run whose cost is not: that of its calls which have a price, and which are charged. Null where
-- `cost_microcents` says it, and for runs that ended before there was this column.

ALTER TABLE run_meters ADD COLUMN known_microcents bigint;
