//! The schema of the evidence store, one migration a version. `docs/evidence.md` describes it; change both.

use rusqlite::Connection;

use crate::error::BenchError;

/// Version of the schema that this build writes: the number of migrations.
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

/// `FLCE` in ASCII, in the file's header, so that another program's database is not taken for evidence.
const APPLICATION_ID: i32 = 0x464c_4345;

/// Migration `i` takes a file from version `i` to `i + 1`. Never edit one that was released: add another.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE runs (
    run_id       INTEGER PRIMARY KEY,
    run_key      TEXT NOT NULL UNIQUE,
    started_at   INTEGER NOT NULL,
    host         TEXT NOT NULL,
    device       TEXT NOT NULL,
    device_name  TEXT NOT NULL,
    device_uuid  TEXT NOT NULL,
    driver       TEXT NOT NULL,
    architecture TEXT NOT NULL,
    units        INTEGER NOT NULL,
    l2_bytes     INTEGER NOT NULL,
    revision     TEXT NOT NULL,
    version      TEXT NOT NULL,
    protocol     INTEGER NOT NULL,
    options      TEXT NOT NULL,
    floor_us     REAL
);
CREATE TABLE measurements (
    measurement_id INTEGER PRIMARY KEY,
    run_id         INTEGER NOT NULL REFERENCES runs,
    case_name      TEXT NOT NULL,
    problem        TEXT NOT NULL,
    problem_json   TEXT NOT NULL,
    flops          REAL NOT NULL,
    bytes          REAL NOT NULL,
    mode           TEXT NOT NULL,
    baseline       INTEGER NOT NULL,
    stop           TEXT,
    rounds         INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX measurements_of_run ON measurements (run_id);
CREATE TABLE subjects (
    subject_id     INTEGER PRIMARY KEY,
    measurement_id INTEGER NOT NULL REFERENCES measurements,
    position       INTEGER NOT NULL,
    label          TEXT NOT NULL,
    kernel         TEXT,
    module         TEXT,
    info           TEXT NOT NULL,
    inspection     TEXT,
    settled        INTEGER NOT NULL DEFAULT 0,
    trouble        TEXT,
    UNIQUE (measurement_id, position)
);
CREATE TABLE samples (
    sample_id  INTEGER PRIMARY KEY,
    subject_id INTEGER NOT NULL REFERENCES subjects,
    round      INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    runs       INTEGER NOT NULL,
    total_us   REAL NOT NULL,
    at_us      REAL NOT NULL
);
CREATE INDEX samples_of_subject ON samples (subject_id);
CREATE TABLE readings (
    reading_id     INTEGER PRIMARY KEY,
    measurement_id INTEGER NOT NULL REFERENCES measurements,
    round          INTEGER NOT NULL,
    sm_mhz         INTEGER,
    memory_mhz     INTEGER,
    power_w        REAL,
    power_limit_w  REAL,
    temperature_c  INTEGER,
    throttle       TEXT NOT NULL
);
CREATE INDEX readings_of_measurement ON readings (measurement_id);
",
    // What turns were like; before there were two kinds they were short.
    "ALTER TABLE measurements ADD COLUMN turns TEXT;
UPDATE measurements SET turns = 'short' WHERE mode = 'hot';
",
];

/// Brings a file to the schema of this build, or refuses it.
pub(super) fn prepare(connection: &mut Connection, path: &str) -> Result<(), BenchError> {
    migrate(connection, path, MIGRATIONS)
}

fn migrate(connection: &mut Connection, path: &str, migrations: &[&str]) -> Result<(), BenchError> {
    let failed = |error: rusqlite::Error| BenchError::Store {
        path: path.to_string(),
        reason: error.to_string(),
    };
    let pragma = |connection: &Connection, name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i32>(0))
            .map_err(failed)
    };
    // Taken before looking, so that two processes that find a new file do not both fill it.
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(failed)?;
    let version = pragma(&transaction, "user_version")?;
    let application = pragma(&transaction, "application_id")?;
    let tables: i64 = transaction
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    let supported = migrations.len() as u32;
    if tables > 0 && application != APPLICATION_ID {
        return Err(BenchError::Schema {
            what: path.to_string(),
            found: "none: it is another program's database".to_string(),
            supported,
            remedy: "name another file",
        });
    }
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    if version > supported {
        return Err(BenchError::Schema {
            what: path.to_string(),
            found: version.to_string(),
            supported,
            remedy: "use the newer build that wrote it, or name another file",
        });
    }
    for migration in &migrations[version as usize..] {
        transaction.execute_batch(migration).map_err(failed)?;
    }
    if version < supported {
        transaction
            .pragma_update(None, "user_version", supported)
            .map_err(failed)?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_an_older_schema_is_brought_up_to_date_with_its_contents() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(
            &mut connection,
            "x",
            &["CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (7);"],
        )
        .unwrap();
        let two = [
            "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (7);",
            "ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 1;",
        ];
        migrate(&mut connection, "x", &two).unwrap();
        let row: (i64, i64) = connection
            .query_row("SELECT a, b FROM t", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(row, (7, 1));
        // Again: nothing to do.
        migrate(&mut connection, "x", &two).unwrap();
    }

    #[test]
    fn hot_measurements_of_the_first_schema_had_short_turns() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, "x", &MIGRATIONS[..1]).unwrap();
        connection
            .execute_batch(
                "INSERT INTO runs VALUES (1, 'k', 0, '', '', '', '', '', '', 1, 1, '', '', 1, '{}', NULL);
                 INSERT INTO measurements VALUES (1, 1, '', '', '', 1, 1, 'hot', 0, NULL, 3);
                 INSERT INTO measurements VALUES (2, 1, '', '', '', 1, 1, 'cold', 0, NULL, 3);",
            )
            .unwrap();
        prepare(&mut connection, "x").unwrap();
        let turns: Vec<Option<String>> = connection
            .prepare("SELECT turns FROM measurements ORDER BY measurement_id")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(turns, [Some("short".to_string()), None]);
    }

    #[test]
    fn newer_and_foreign_files_are_refused_untouched() {
        let mut newer = Connection::open_in_memory().unwrap();
        migrate(&mut newer, "x", &["CREATE TABLE a (a);", "CREATE TABLE b (b);"]).unwrap();
        let error = migrate(&mut newer, "x", &["CREATE TABLE a (a);"]).unwrap_err();
        assert!(error.to_string().contains("schema 2; this build reads 1"), "{error}");
        let mut foreign = Connection::open_in_memory().unwrap();
        foreign.execute_batch("CREATE TABLE photos (id);").unwrap();
        let error = prepare(&mut foreign, "photos.db").unwrap_err();
        assert!(error.to_string().contains("another program's database"), "{error}");
        let tables: i64 = foreign
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .unwrap();
        assert_eq!(tables, 1);
    }

    #[test]
    fn a_migration_that_fails_leaves_the_file_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert!(migrate(&mut connection, "x", &["CREATE TABLE a (a);", "CREATE NONSENSE;"]).is_err());
        migrate(&mut connection, "x", &["CREATE TABLE a (a);"]).unwrap();
    }
}
