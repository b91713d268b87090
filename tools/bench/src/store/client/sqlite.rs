//! SQLite inside this process: it has no server. Each worker is a thread, as its calls block.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{Action, key};

/// How long SQLite itself waits for a lock before it reports that it is busy.
const BUSY: Duration = Duration::from_secs(5);

pub fn prepare(file: &Path, journal: &str) -> anyhow::Result<()> {
    let connection = Connection::open(file)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", journal, |row| row.get(0))?;
    ensure!(mode == journal, "SQLite's journal is {mode}, not {journal}");
    connection.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT NOT NULL)", ())?;
    Ok(())
}

pub fn open(file: &Path) -> anyhow::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY)?;
    // With this setting every commit is durable, with either journal.
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

pub fn perform(connection: &Connection, action: Action, turn: u64) -> anyhow::Result<()> {
    let (key, value) = (key(turn), turn.to_string());
    let good = match action {
        Action::Set => {
            let text = "INSERT INTO kv VALUES (?1, ?2) \
                        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            connection.prepare_cached(text)?.execute((&key, &value))? == 1
        }
        Action::Lookup => {
            let mut statement = connection.prepare_cached("SELECT value FROM kv WHERE key = ?1")?;
            let found: Option<String> =
                statement.query_row((&key,), |row| row.get(0)).optional()?;
            found.as_ref() == Some(&value)
        }
        Action::Delete => {
            let mut statement = connection.prepare_cached("DELETE FROM kv WHERE key = ?1")?;
            statement.execute((&key,))? == 1
        }
    };
    ensure!(good, "{action:?} of {key} found something else");
    Ok(())
}

pub fn version() -> String {
    rusqlite::version().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::client::TURN;

    #[test]
    fn a_turn_succeeds_with_either_journal() {
        for journal in ["delete", "wal"] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("kv.db");
            prepare(&file, journal).unwrap();
            let connection = open(&file).unwrap();
            assert!(perform(&connection, Action::Lookup, 7).is_err());
            TURN.iter().for_each(|action| perform(&connection, *action, 7).unwrap());
            assert!(perform(&connection, Action::Delete, 7).is_err());
        }
    }
}
