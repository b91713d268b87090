//! The audit: each change is written down before it is made, and its outcome after it, under keys
//! of this node. A change that a crash interrupted has an entry without an outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use futures_util::{StreamExt, TryStreamExt};
use model::audit::{AuditEntry, AuditId, AuditOutcome};
use model::change::{Change, ChangeId, ChangePart};
use model::key::{access_prefix, application_prefix, audit_prefix, cluster_prefix};
use model::record::{RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, NodeId, Timestamp, TypedKey};
use schemars::JsonSchema;
use serde::Deserialize;
use store::{SharedStore, readable};

use super::caller::Caller;
use super::door::Door;
use super::peer::Peer;
use super::problem::Problem;
use super::records::ApplicationRecords;
use super::{Shared, records, undo};
use api_types::NOTE_HEADER;
use api_types::people::AuditRow;

/// The time for which the audit is kept: a season, as long as tokens are good.
const AUDIT_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// The most keys of the audit, two for a change: some megabytes in memory on each node.
const AUDIT_KEYS_MAX: usize = 20_000;
/// The most keys that one change removes, so that no request waits for a long sweep.
const PRUNED_AT_ONCE: usize = 64;
/// The number of changes between two looks for what is to be removed, which take all keys of the
/// audit: as many as write what one of them removes.
const PRUNED_EVERY: u32 = PRUNED_AT_ONCE as u32 / 2;
/// Entries in one answer unless another number is asked for.
const ROWS_DEFAULT: usize = 100;
/// Entries that are read at a time, which is as many as most ask for, and reads under way: a node
/// without a store asks another one for each.
const PAGE: usize = ROWS_DEFAULT;
const READS_AT_ONCE: usize = 16;
/// Bytes of a path in an entry; the rest says nothing of the kind of request.
const PATH_BYTES_MAX: usize = 512;
/// Characters of a note, as of what a push says of its source: one line of a terminal or two.
pub const NOTE_CHARS_MAX: usize = 200;
/// The fail point between an entry and the change.
const FAIL_POINT: &str = "api.audit";

/// An entry whose outcome is not known yet. Handlers say in it what they are about to change.
#[derive(Clone)]
pub struct Underway(Arc<UnderwayEntry>);

struct UnderwayEntry {
    store: SharedStore,
    /// `None` if it could not be written.
    id: Option<ChangeId>,
    entry: AuditEntry,
}

/// The person who asks for a release, and what they say of it.
#[derive(Clone, Debug)]
pub struct By {
    pub author: String,
    pub remark: Option<String>,
}

impl Underway {
    pub fn by(&self) -> By {
        By { author: self.0.entry.who.clone(), remark: self.0.entry.note.clone() }
    }

    /// Writes down what is about to be done to an application. The caller holds `Api::changes`, so
    /// that what was before is what it says.
    pub async fn describe(
        &self,
        app: &ApplicationRecords,
        at: Timestamp,
        parts: Vec<ChangePart>,
    ) -> Result<(), Problem> {
        self.write(app, Change { at, created_at: app.spec.created_at, parts, undoes: None }).await
    }

    /// Writes down which change is about to be taken back, and by what.
    pub async fn describe_undo(
        &self,
        app: &ApplicationRecords,
        at: Timestamp,
        parts: Vec<ChangePart>,
        undone: ChangeId,
    ) -> Result<(), Problem> {
        let (created_at, undoes) = (app.spec.created_at, Some(undone));
        self.write(app, Change { at, created_at, parts, undoes }).await
    }

    async fn write(&self, app: &ApplicationRecords, change: Change) -> Result<(), Problem> {
        let Some(ChangeId { entry: id, node }) = self.0.id.clone() else { return Ok(()) };
        if change.parts.is_empty() {
            return Ok(());
        }
        let (application, change) = (Some(app.name.clone()), Some(change));
        let entry = AuditEntry { application, change, ..self.0.entry.clone() };
        records::write(&*self.0.store, TypedKey::Audit(node, id), &entry).await
    }
}

/// A request, as the audit describes it.
pub struct Asked {
    from: String,
    method: String,
    path: String,
    note: Option<String>,
}

impl Asked {
    pub fn of(request: &Request, peer: &Peer) -> Result<Asked, Problem> {
        let note = request.headers().get(NOTE_HEADER).map(|value| note(value.as_bytes()));
        Ok(Asked {
            from: peer.to_string(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            note: note.transpose()?,
        })
    }
}

/// Reads what a person says of a change: one line of UTF-8.
fn note(value: &[u8]) -> Result<String, Problem> {
    let invalid = |why: String| Problem::invalid("invalid_note", why);
    let text = std::str::from_utf8(value).map_err(|_| invalid("the note is not UTF-8".into()))?;
    let text = text.trim();
    if text.chars().any(char::is_control) {
        return Err(invalid("a note is one line, without control characters".into()));
    }
    let length = text.chars().count();
    if text.is_empty() || length > NOTE_CHARS_MAX {
        let detail = format!("a note has 1 to {NOTE_CHARS_MAX} characters, and this one {length}");
        return Err(invalid(detail));
    }
    Ok(text.to_owned())
}

/// Writes down that a change is asked for. The machine's owner, who may write any key, is not kept
/// from mending a node whose disk is full; anybody else waits until it can be written down.
pub async fn begin(
    door: &Door,
    caller: &Caller,
    asked: Asked,
    application: Option<ApplicationName>,
) -> Result<Underway, Problem> {
    let now = door.clock.now();
    let number = door.entries.fetch_add(1, Ordering::Relaxed);
    let id = AuditId::new(now, number);
    let Asked { from, method, mut path, note } = asked;
    path.truncate(path.floor_char_boundary(PATH_BYTES_MAX));
    let mut entry = AuditEntry {
        v: RECORD_VERSION,
        at: now,
        who: caller.name(),
        token: caller.token_name(),
        from,
        method,
        path,
        application,
        before: None,
        note,
        change: None,
        unknown: Unknown::new(),
    };
    let written = async {
        entry.before = state(&door.store, entry.application.as_ref()).await?;
        records::write(&*door.store, TypedKey::Audit(door.node.clone(), id), &entry).await?;
        if number.is_multiple_of(PRUNED_EVERY) { prune(door, now).await } else { Ok(()) }
    };
    let id = match (written.await, caller.token()) {
        (Ok(()), _) => Some(ChangeId { entry: id, node: door.node.clone() }),
        (Err(problem), Some(_)) => return Err(problem),
        (Err(problem), None) => {
            tracing::warn!(?problem, "audit.not_written");
            None
        }
    };
    let fault = door.control.faults().check_async(FAIL_POINT).await;
    fault.map_err(|error| Problem::internal(format!("{error:#}")))?;
    Ok(Underway(Arc::new(UnderwayEntry { store: door.store.clone(), id, entry })))
}

/// Writes down what became of a change.
pub async fn end(door: &Door, entry: Underway, status: StatusCode) {
    let Some(ChangeId { entry: id, node }) = entry.0.id.clone() else { return };
    let written = async {
        let outcome = AuditOutcome {
            v: RECORD_VERSION,
            at: door.clock.now(),
            status: status.as_u16(),
            after: state(&door.store, entry.0.entry.application.as_ref()).await?,
            unknown: Unknown::new(),
        };
        records::write(&*door.store, TypedKey::AuditOutcome(node, id), &outcome).await
    };
    if let Err(problem) = written.await {
        tracing::warn!(?problem, "audit.outcome_not_written");
    }
}

/// Returns the hash of what people decided about an application, or about people and nodes.
async fn state(
    store: &SharedStore,
    application: Option<&ApplicationName>,
) -> Result<Option<String>, Problem> {
    let prefixes = match application {
        Some(application) => vec![application_prefix(application)],
        None => vec![access_prefix(), cluster_prefix()],
    };
    let mut hasher = blake3::Hasher::new();
    let mut empty = true;
    for prefix in prefixes {
        for key in store.keys(&prefix).await?.into_iter().filter(is_decided) {
            let Some(hash) = store.lookup_hash(&key).await? else { continue };
            hasher.update(key.as_str().as_bytes()).update(&[0]).update(&hash);
            empty = false;
        }
    }
    Ok((!empty).then(|| hasher.finalize().to_hex().to_string()))
}

/// Returns whether people decide what is under that key, and not the nodes.
fn is_decided(key: &Key) -> bool {
    matches!(
        TypedKey::parse(key),
        Some(
            TypedKey::Spec(_)
                | TypedKey::Config(_)
                | TypedKey::Release(..)
                | TypedKey::Move(_)
                | TypedKey::User(_)
                | TypedKey::Team(_)
                | TypedKey::Token(_)
                | TypedKey::Member(_)
                | TypedKey::Guest(_)
                | TypedKey::Drained(_)
                | TypedKey::Roll
        )
    )
}

/// Removes what is too old, of all nodes: one that was removed sweeps no more.
async fn prune(door: &Door, now: Timestamp) -> Result<(), Problem> {
    let mut keys: Vec<(AuditId, Key)> = Vec::new();
    for key in door.store.keys(&audit_prefix()).await? {
        if let Some(TypedKey::Audit(_, id) | TypedKey::AuditOutcome(_, id)) = TypedKey::parse(&key)
        {
            keys.push((id, key));
        }
    }
    keys.sort();
    let excess = keys.len().saturating_sub(AUDIT_KEYS_MAX);
    let is_stale =
        |(n, (id, _)): &(usize, (AuditId, Key))| *n < excess || now.since(id.at) > AUDIT_KEPT;
    let stale = keys.into_iter().enumerate().take_while(is_stale).take(PRUNED_AT_ONCE);
    for (_, (_, key)) in stale {
        door.store.delete(key).await?;
    }
    Ok(())
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct AuditQuery {
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    app: Option<String>,
}

/// A change on record, and its outcome if that is known.
pub type Recorded = (ChangeId, AuditEntry, Option<AuditOutcome>);

/// The audit of all nodes, newest first, read a page at a time: it has thousands of entries, and
/// whoever asks wants the last ones.
pub struct NewestFirst {
    store: SharedStore,
    /// The entries that were not read yet, oldest first.
    left: Vec<ChangeId>,
}

impl NewestFirst {
    pub async fn open(store: &SharedStore) -> Result<NewestFirst, Problem> {
        let keys = store.keys(&audit_prefix()).await?;
        let id = |key: &Key| match TypedKey::parse(key) {
            Some(TypedKey::Audit(node, entry)) => Some(ChangeId { entry, node }),
            _ => None,
        };
        let mut left: Vec<ChangeId> = keys.iter().filter_map(id).collect();
        left.sort();
        Ok(NewestFirst { store: store.clone(), left })
    }

    /// Leaves out what is older than that.
    pub fn since(mut self, earliest: Timestamp) -> NewestFirst {
        self.left.retain(|id| id.entry.at >= earliest);
        self
    }

    #[cfg(test)]
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Returns the next ones; `None` at the end.
    pub async fn page(&mut self) -> Result<Option<Vec<Recorded>>, Problem> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let page = self.left.split_off(self.left.len().saturating_sub(PAGE));
        let reads = page.into_iter().rev().map(|id| recorded(&self.store, id));
        let page = futures_util::stream::iter(reads).buffered(READS_AT_ONCE).try_collect();
        let page: Vec<Option<Recorded>> = page.await?;
        Ok(Some(page.into_iter().flatten().collect()))
    }
}

/// Reads one entry; `None` if it went meanwhile, or nobody can read it.
async fn recorded(store: &SharedStore, id: ChangeId) -> Result<Option<Recorded>, Problem> {
    let read = |key: TypedKey| async move {
        let key = key.key();
        let entry = store.lookup(&key).await.map_err(Problem::from)?;
        Ok::<_, Problem>((key, entry))
    };
    let (key, entry) = read(TypedKey::Audit(id.node.clone(), id.entry)).await?;
    let Some(entry) = readable(&key, entry.as_ref().map(|one| &one.value)) else {
        return Ok(None);
    };
    let (key, outcome) = read(TypedKey::AuditOutcome(id.node.clone(), id.entry)).await?;
    let outcome = readable(&key, outcome.as_ref().map(|one| &one.value));
    Ok(Some((id, entry, outcome)))
}

/// Lists changes on all nodes, newest first.
pub async fn list(
    State(api): State<Shared>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Vec<AuditRow>>, Problem> {
    let limit = query.limit.unwrap_or(ROWS_DEFAULT).min(AUDIT_KEYS_MAX);
    let mut audit = NewestFirst::open(&api.store).await?;
    let mut rows = Vec::new();
    while rows.len() < limit
        && let Some(page) = audit.page().await?
    {
        let page = page.into_iter().map(|(id, entry, outcome)| row(id.node, entry, outcome));
        rows.extend(page.filter(|row| query.app.is_none() || row.application == query.app));
    }
    rows.truncate(limit);
    Ok(Json(rows))
}

fn row(node: NodeId, entry: AuditEntry, outcome: Option<AuditOutcome>) -> AuditRow {
    let word = match outcome.as_ref().map(|outcome| outcome.status) {
        None => "attempted",
        Some(..400) => "done",
        Some(400..500) => "refused",
        Some(_) => "failed",
    };
    AuditRow {
        at: records::rfc3339(entry.at),
        node: node.to_string(),
        who: entry.who,
        token: entry.token.map(|token| token.to_string()),
        from: entry.from,
        method: entry.method,
        path: entry.path,
        application: entry.application.map(|name| name.to_string()),
        outcome: word.into(),
        status: outcome.as_ref().map(|outcome| outcome.status),
        ended_at: outcome.as_ref().map(|outcome| records::rfc3339(outcome.at)),
        before: entry.before,
        what: entry.change.as_ref().map(undo::words::of_change),
        note: entry.note,
        undoes: entry.change.and_then(|change| change.undoes).map(String::from),
        after: outcome.and_then(|outcome| outcome.after),
    }
}
