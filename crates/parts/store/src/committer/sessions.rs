//! What replication asks of the committer: sends and receives messages, holds values under tickets,
//! and sets commits aside before they are dropped.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use store_core::event::{Change, Event, Write};
use store_core::sync::members::is_roster_key;
use store_core::sync::message::{Body, Message};
use store_core::{Commit, CommitAction, Location, Position};

use super::Committer;
use crate::command::{Command, IncomingMessage};
use crate::log::LogError;
use crate::{Cursor, StoreError};
use model::hex::to_hex as hex;

/// The size in bytes of one write to a file of commits that are set aside.
const CHUNK: usize = 1 << 20;

/// Commits to be set aside, and those of them that are to be written anew, under which keys.
pub(super) struct Aside {
    commits: Vec<Commit>,
    anew: BTreeMap<Position, Arc<str>>,
}

impl Committer {
    pub(super) fn hear(&mut self, command: Command) -> Result<(), LogError> {
        match command {
            Command::Received(incoming) => self.take_in(incoming),
            Command::Tell(event, reply) => {
                let fed = self.feed(Some(event));
                if let Some(reply) = reply.filter(|_| fed.is_ok()) {
                    let _ = reply.send(());
                }
                fed
            }
            Command::Write { .. }
            | Command::Await { .. }
            | Command::Squash { .. }
            | Command::Close { .. } => Ok(()),
        }
    }

    fn take_in(&mut self, incoming: IncomingMessage) -> Result<(), LogError> {
        let IncomingMessage { from, mut message, values, room } = incoming;
        if let Body::Commits { commits, .. } = &mut message.body {
            let mut values = values.into_iter();
            for carried in commits {
                // A value that travels apart holds nothing, not even an empty value.
                carried.ticket = match values.next().flatten() {
                    Some(value) => self.expect(value, None),
                    None => self.ticket(),
                };
            }
        }
        let taken = self.feed(Some(Event::Received { from, message }));
        drop(room);
        taken
    }

    pub(super) fn send(&self, to: store_core::NodeTag, message: Message) {
        if let Some(outlet) = self.shared.outlet() {
            outlet.send(to, message);
        }
    }

    /// Tells every watcher to read again.
    pub(super) fn resync(&self) {
        let cursor = {
            let machine = self.shared.machine();
            let arrivals = machine.arrivals();
            Cursor { incarnation: arrivals.incarnation(), arrival: arrivals.last() }
        };
        self.shared.watchers().resync_all(cursor);
    }

    /// Sets commits aside and returns the event that follows; `None` while the disk has no room,
    /// and then it is tried again.
    pub(super) fn set_aside(
        &mut self,
        commits: Vec<Commit>,
        anew: Vec<(Position, Arc<str>)>,
    ) -> Option<Event> {
        self.put_aside(Aside { commits, anew: anew.into_iter().collect() })
    }

    fn put_aside(&mut self, aside: Aside) -> Option<Event> {
        match self.keep_aside(&aside) {
            Ok(()) => Some(Event::SetAside { writes: self.issue_anew(&aside) }),
            Err(error) => {
                tracing::error!(
                    %error,
                    "store.not_set_aside: free space for the data directory; this is tried again"
                );
                self.aside = Some(aside);
                None
            }
        }
    }

    pub(super) fn set_aside_again(&mut self) -> Result<(), LogError> {
        let Some(aside) = self.aside.take() else { return Ok(()) };
        match self.put_aside(aside) {
            Some(event) => self.feed(Some(event)),
            None => Ok(()),
        }
    }

    fn keep_aside(&self, aside: &Aside) -> io::Result<()> {
        let name = format!("aside-{}", self.clock.now().0);
        let path = self.dir.join(format!("{name}.jsonl"));
        let file = self.options.disk.create(&path)?;
        let (mut chunk, mut length) = (Vec::new(), 0);
        for commit in &aside.commits {
            let value = self.value_to_keep(commit);
            let line = self.line(&name, commit, value.as_ref().ok(), aside.anew.get(&commit.at));
            chunk.extend_from_slice(line.to_string().as_bytes());
            chunk.push(b'\n');
            if chunk.len() >= CHUNK {
                file.write_at(&chunk, length)?;
                length += chunk.len() as u64;
                chunk.clear();
            }
        }
        file.write_at(&chunk, length)?;
        file.sync_all()?;
        self.options.disk.sync_names(&self.dir)?;
        tracing::warn!(
            commits = aside.commits.len(), anew = aside.anew.len(), file = %path.display(),
            "store.set_aside: what this node held and its cluster does not is kept there"
        );
        Ok(())
    }

    fn issue_anew(&mut self, aside: &Aside) -> Vec<Write> {
        // The members of another cluster are unknown in this one.
        let joining = self.shared.machine().is_joining();
        let mut writes = Vec::new();
        for commit in &aside.commits {
            let Some(key) = aside.anew.get(&commit.at) else { continue };
            if joining && is_roster_key(key) {
                continue;
            }
            match self.value_to_keep(commit) {
                Ok(value) => writes.extend(self.issue(commit, key, value)),
                Err(error) => tracing::error!(%error, "store.value_damaged"),
            }
        }
        writes
    }

    /// Returns the bytes of a small value; nothing for a large one.
    fn value_to_keep(&self, commit: &Commit) -> Result<Bytes, StoreError> {
        if !matches!(commit.location, Location::Log { .. }) {
            return Ok(Bytes::new());
        }
        let gone = || StoreError::Refused(format!("the value of '{}' is gone", commit.key));
        let held = self.shared.machine().replica().history().get(commit.at).cloned();
        let held = held.ok_or_else(gone)?;
        let file = self.shared.file_of(&held).ok_or_else(gone)?;
        self.shared.read(&held, &file)
    }

    fn line(
        &self,
        name: &str,
        commit: &Commit,
        value: Option<&Bytes>,
        anew: Option<&Arc<str>>,
    ) -> serde_json::Value {
        let mut line = json!({
            "v": 1,
            "key": &*commit.key,
            "set_at_ms": commit.at.stamp.time().0,
            "node": commit.at.node.as_str(),
            "action": if commit.is_delete() { "delete" } else { "set" },
            "issued_anew_as": anew.map(|key| &**key),
        });
        let CommitAction::Set { hash, .. } = commit.action else { return line };
        if commit.location == Location::File {
            // The value's own file goes when no commit refers to it.
            let kept = self.dir.join(format!("{name}-{}", hex(&hash)));
            let linked = std::fs::hard_link(self.shared.values.path(&hash), &kept);
            line["value_file"] = match linked {
                Ok(()) => json!(kept),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => json!(kept),
                Err(error) => json!(format!("not kept: {error}")),
            };
        } else if let Some(value) = value.filter(|_| commit.location != Location::Nowhere) {
            match std::str::from_utf8(value) {
                Ok(text) => line["value"] = json!(text),
                Err(_) => line["value_hex"] = json!(hex(value)),
            }
        }
        line
    }

    fn issue(&mut self, commit: &Commit, key: &Arc<str>, value: Bytes) -> Option<Write> {
        match (commit.action, commit.location) {
            (CommitAction::Set { hash, .. }, Location::File) => {
                self.shared.values.renew(&hash).ok()?
            }
            (CommitAction::Set { .. }, Location::Nowhere) => return None,
            _ => {}
        }
        let ticket = self.expect(value, None);
        let key = key.parse().ok()?;
        Some(Write { ticket, key, change: Change::again(commit), only_over: None })
    }
}
