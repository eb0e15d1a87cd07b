-- Times are no order, since a clock may be set back: `turn` counts the jobs that ended, in the order in which they did.
ALTER TABLE jobs ADD COLUMN turn INTEGER;
UPDATE jobs SET turn = ranked.turn
    FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY ended, id) AS turn FROM jobs WHERE ended IS NOT NULL) AS ranked
    WHERE ranked.id = jobs.id;
DROP INDEX jobs_ended;
CREATE INDEX jobs_turn ON jobs (turn);
