-- owner: plugins/skills
-- How large the description of a version is, by which a list bounds its reads: that of a skill of 500 files is a thousand times
-- that of one without. Rows that are there stay as they are, and a release before writes none: those are listed a few at once, as it lists them.

ALTER TABLE skill_contents ADD COLUMN manifest_bytes integer;
