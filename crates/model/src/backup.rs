//! What a cluster keeps of exports and imports.

use serde::{Deserialize, Serialize};

use crate::cron::CronRun;
use crate::id::NodeId;
use crate::record::Unknown;
use crate::time::Timestamp;

/// The records about copies that are made by themselves: `backup::settings` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupKey {
    Settings,
    Order,
    Log,
}

impl BackupKey {
    pub fn word(self) -> &'static str {
        match self {
            BackupKey::Settings => "settings",
            BackupKey::Order => "order",
            BackupKey::Log => "log",
        }
    }

    pub fn of(word: &str) -> Option<BackupKey> {
        let all = [BackupKey::Settings, BackupKey::Order, BackupKey::Log];
        all.into_iter().find(|key| key.word() == word)
    }
}

/// `cluster::import`: the import of an exported cluster that has begun. Written by the node that
/// imports, which deletes it when everything is there: until then the same file may be imported
/// again, and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportUnderWay {
    pub v: u32,
    /// The hash of the export.
    pub export: String,
    pub began_at: Timestamp,
    pub node: NodeId,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `backup::settings`: when a copy of the cluster is made by itself, and where it goes. Sealed, as
/// it has the pass-phrase. Written by commands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupSettings {
    pub v: u32,
    /// The time of day: "03:00".
    pub at: String,
    /// A time zone of the system's zone data: "Europe/Berlin".
    pub timezone: String,
    pub place: BackupPlace,
    /// The node that makes it; `None` for any that keeps the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The number of copies that a directory keeps.
    pub keep: u32,
    #[serde(default)]
    pub with_files: bool,
    pub pass_phrase: String,
    pub set_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl std::fmt::Debug for BackupSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BackupSettings { at, timezone, place, node, keep, with_files, .. } = self;
        let mut shown = f.debug_struct("BackupSettings");
        shown.field("at", at).field("timezone", timezone).field("place", place);
        shown.field("node", node).field("keep", keep).field("with_files", with_files);
        shown.finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupPlace {
    Directory(String),
    /// A command that gets the copy on its stdin.
    Hook(String),
}

/// `backup::order`: the order to make a copy now. Written by commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupOrder {
    pub v: u32,
    pub asked_at: Timestamp,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `backup::log`: the last run, and what became of those before. Written by the node that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackupLog {
    pub v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<CronRun>,
    /// Copies that were made and tries that failed, the newest first.
    #[serde(default)]
    pub entries: Vec<BackupEntry>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupEntry {
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub node: NodeId,
    /// The name of the copy.
    pub name: String,
    /// The bytes of the copy; 0 if it failed.
    pub bytes: u64,
    /// The reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Applications whose files are not in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_files: Vec<String>,
}

/// The time in milliseconds after which a daily copy is overdue: a day, the night of the year that
/// has an hour more, and an hour to make it.
pub const BACKUP_OVERDUE_MS: u64 = 26 * 3600 * 1000;

impl BackupLog {
    /// Says what is wrong with the copies, in words for people; `None` if nothing is.
    pub fn problem(&self, settings: &BackupSettings, now: Timestamp) -> Option<String> {
        let of_schedule = |entry: &&BackupEntry| entry.started_at >= settings.set_at;
        let failed = self.entries.first().filter(of_schedule);
        if let Some((entry, why)) = failed.and_then(|e| e.failure.as_ref().map(|why| (e, why))) {
            return Some(format!("the last back-up failed on node {}: {why}", entry.node));
        }
        let good = self.entries.iter().filter(of_schedule).find(|entry| entry.failure.is_none());
        let since = good.map_or(settings.set_at, |entry| entry.started_at);
        let overdue = now.0.saturating_sub(since.0) > BACKUP_OVERDUE_MS;
        overdue.then(|| match &settings.node {
            Some(node) => format!("no back-up was made for a day: node {node} is to make it"),
            None => "no back-up was made for a day".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> BackupSettings {
        BackupSettings {
            v: 1,
            at: "03:00".into(),
            timezone: "UTC".into(),
            place: BackupPlace::Hook("cat".into()),
            node: None,
            keep: 7,
            with_files: false,
            pass_phrase: "unspeakable".into(),
            set_at: Timestamp(1000),
            unknown: Unknown::new(),
        }
    }

    fn entry(at: u64, failure: Option<&str>) -> BackupEntry {
        BackupEntry {
            started_at: Timestamp(at),
            ended_at: Timestamp(at + 1),
            node: "n1".parse().unwrap(),
            name: "x".into(),
            bytes: 1,
            failure: failure.map(String::from),
            without_files: Vec::new(),
        }
    }

    #[test]
    fn failures_and_silence_are_problems() {
        let problem = |entries: Vec<BackupEntry>, now: u64| {
            let log = BackupLog { entries, ..BackupLog::default() };
            log.problem(&settings(), Timestamp(now))
        };
        assert_eq!(problem(Vec::new(), 2000), None);
        let late = 1000 + BACKUP_OVERDUE_MS + 1;
        assert!(problem(Vec::new(), late).unwrap().contains("for a day"));
        assert_eq!(problem(vec![entry(late - 5, None)], late), None);
        let failed = vec![entry(late - 5, Some("the disk is full")), entry(late - 9, None)];
        assert!(problem(failed, late).unwrap().contains("n1: the disk is full"));
        // What failed before the schedule was changed is over.
        assert_eq!(problem(vec![entry(500, Some("no"))], 2000), None);
    }

    #[test]
    fn the_pass_phrase_is_shown_to_nobody() {
        assert!(!format!("{:?}", settings()).contains("unspeakable"));
    }
}
