-- Jobs: queued, running and what became of them. Times are seconds since 1970, places run from the front of the queue.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'crashed')),
    held INTEGER NOT NULL DEFAULT 0,
    place REAL NOT NULL,
    batch TEXT NOT NULL,
    key TEXT NOT NULL,
    words TEXT NOT NULL,
    spec TEXT NOT NULL,
    result TEXT,
    error TEXT,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    deleted REAL,
    removal TEXT
);
CREATE INDEX jobs_waiting ON jobs (place, id) WHERE state = 'queued' AND deleted IS NULL;
CREATE INDEX jobs_ended ON jobs (ended, id) WHERE ended IS NOT NULL AND deleted IS NULL;
CREATE INDEX jobs_key ON jobs (key);

-- What stages took on this machine, for estimates; kept when a clip is deleted.
CREATE TABLE measured (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    engaged TEXT NOT NULL,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    frames INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    forwards INTEGER NOT NULL,
    timings TEXT NOT NULL,
    memory INTEGER
);
CREATE INDEX measured_model ON measured (model, id);

-- Small facts that outlive a process, such as the accelerators that a person switched; values are JSON.
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
