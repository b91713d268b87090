//! Copies of the cluster that are made by themselves, once a day: looks at what is due, makes it if
//! it is this node's turn, and keeps the record. The rules are those of scheduled commands.

use std::collections::BTreeSet;
use std::time::Duration;

use agent::scheduled::zone;
use anyhow::{Context, ensure};
use model::backup::{BackupEntry, BackupKey, BackupLog, BackupOrder, BackupSettings};
use model::cron::CronRun;
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, Key, NodeId, Prefix, Timestamp, TypedKey};
use recipe_core::cron::{CronEntry, Decision, Schedule, decide, owner};
use serde::de::DeserializeOwned;
use time::OffsetDateTime;
use time::macros::format_description;

use super::BackupContext;
use super::place::{Made, make};
use store::{WatchEvent, lookup_record};

/// The interval between two looks in milliseconds; changes of the records are looked at at once.
const LOOK_MS: u64 = 30_000;
/// Entries of the log: a month of days.
const ENTRIES_MAX: usize = 31;
/// The longest reason of a failure, in characters: it travels within the log.
const WHY_CHARS_MAX: usize = 500;
/// The fewest characters of a new pass-phrase.
const PASS_PHRASE_CHARS_MIN: usize = 12;
/// What draws the node that makes it, in place of an application and its entry.
const DRAWN_FOR: (&str, &str) = ("cortex", "backup");

/// Runs for as long as the node does.
pub async fn run(context: BackupContext) -> anyhow::Result<()> {
    let mut watch = context.store.watch("backup".parse()?, None).await?;
    loop {
        look(&context).await?;
        let into = context.clock.now().0 % LOOK_MS;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(LOOK_MS - into)) => {}
            event = watch.next() => match event {
                None => return Ok(()),
                Some(WatchEvent::Changed { .. } | WatchEvent::Resync { .. }) => {}
            }
        }
    }
}

/// Returns the schedule for a time of day, such as "03:00".
pub fn daily(at: &str) -> anyhow::Result<Schedule> {
    let wrong = || format!("'{at}' is no time of day, such as 03:00");
    let (hour, minute) = at.split_once(':').with_context(wrong)?;
    let digits = |text: &str| text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(digits(hour) && digits(minute), "{}", wrong());
    format!("{minute} {hour} * * *").parse().with_context(wrong)
}

/// Says what is wrong with a new pass-phrase; `None` if it is good.
pub fn pass_phrase_fault(phrase: &str) -> Option<String> {
    let count = phrase.chars().count();
    (count < PASS_PHRASE_CHARS_MIN).then(|| {
        format!(
            "the pass-phrase has {count} characters, and {PASS_PHRASE_CHARS_MIN} are the least: \
             whoever has the file may guess for years; five words drawn by chance are good"
        )
    })
}

async fn read<T: DeserializeOwned>(
    context: &BackupContext,
    key: TypedKey,
) -> anyhow::Result<Option<T>> {
    lookup_record(&*context.store, key.key()).await
}

async fn look(context: &BackupContext) -> anyhow::Result<()> {
    let Some(settings) =
        read::<BackupSettings>(context, TypedKey::Backup(BackupKey::Settings)).await?
    else {
        return Ok(());
    };
    let live = live(context);
    let able = able(context, &settings, &live).await?;
    let log: BackupLog = read(context, TypedKey::Backup(BackupKey::Log)).await?.unwrap_or_default();
    let order: Option<BackupOrder> = read(context, TypedKey::Backup(BackupKey::Order)).await?;
    if let Some((due, attempt)) = due(context, &settings, &able, &live, &log, order.as_ref())? {
        perform(context, &settings, log, due, attempt).await?;
    }
    Ok(())
}

/// Returns the nodes that are alive, this one among them.
fn live(context: &BackupContext) -> BTreeSet<NodeId> {
    let others = context.members.as_ref().map(|members| members.alive().borrow().clone());
    let mut live = others.unwrap_or_default();
    live.insert(context.node.clone());
    live
}

/// Returns the nodes that may make it: the one that is named, else those that keep the store.
async fn able(
    context: &BackupContext,
    settings: &BackupSettings,
    live: &BTreeSet<NodeId>,
) -> anyhow::Result<Vec<NodeId>> {
    if let Some(node) = &settings.node {
        return Ok(live.get(node).cloned().into_iter().collect());
    }
    let members = Prefix::from("cluster::nodes".parse::<Key>()?);
    let keys = context.store.keys(&members).await?;
    let member = |key: &Key| match TypedKey::parse(key) {
        Some(TypedKey::Member(node)) if live.contains(&node) => Some(node),
        _ => None,
    };
    Ok(keys.iter().filter_map(member).collect())
}

/// Returns the time for which a copy is to be made here now, and the number of the attempt.
fn due(
    context: &BackupContext,
    settings: &BackupSettings,
    able: &[NodeId],
    live: &BTreeSet<NodeId>,
    log: &BackupLog,
    order: Option<&BackupOrder>,
) -> anyhow::Result<Option<(Timestamp, u32)>> {
    let application: ApplicationName = DRAWN_FOR.0.parse()?;
    let last = log.last.as_ref();
    let alive = last.is_some_and(|last| live.contains(&last.node));
    let is_under_way =
        last.is_some_and(|last| last.ended_at.is_none() && alive && last.node != context.node);
    let asked = order.filter(|order| last.is_none_or(|last| last.started_at < order.asked_at));
    if let Some(order) = asked.filter(|_| !is_under_way)
        && owner(&application, DRAWN_FOR.1, able) == Some(&context.node)
    {
        return Ok(Some((order.asked_at, 1)));
    }
    let (schedule, zone) = (daily(&settings.at)?, zone(&settings.timezone)?);
    let entry = CronEntry {
        application: &application,
        name: DRAWN_FOR.1,
        schedule: &schedule,
        zone: &zone,
        since: settings.set_at,
        last,
        alive,
        // One is made after the other, in this task.
        running: false,
    };
    Ok(match decide(context.clock.now(), &context.node, able, &entry) {
        Decision::Nothing => None,
        Decision::Run { due, attempt } => Some((due, attempt)),
    })
}

/// Makes a copy. A record is written before, so that it is known after a crash.
async fn perform(
    context: &BackupContext,
    settings: &BackupSettings,
    mut log: BackupLog,
    due: Timestamp,
    attempt: u32,
) -> anyhow::Result<()> {
    let started_at = context.clock.now();
    let mut run = CronRun {
        v: RECORD_VERSION,
        due,
        node: context.node.clone(),
        started_at,
        attempt,
        ended_at: None,
        success: false,
        how: None,
        pid: None,
        unknown: Unknown::new(),
    };
    (log.v, log.last) = (RECORD_VERSION, Some(run.clone()));
    write(context, &log).await?;
    let name = name(started_at)?;
    tracing::info!(name, "backup.started");
    let made = make(context, settings, &name).await;
    let ended_at = context.clock.now();
    let failure = made.as_ref().err().map(|error| {
        let why: String = format!("{error:#}").chars().take(WHY_CHARS_MAX).collect();
        tracing::warn!(name, why, "backup.failed");
        why
    });
    if failure.is_none() {
        tracing::info!(name, "backup.made");
    }
    let Made { bytes, without_files } = made.unwrap_or_default();
    (run.ended_at, run.success, run.how) = (Some(ended_at), failure.is_none(), failure.clone());
    let node = context.node.clone();
    let entry = BackupEntry { started_at, ended_at, node, name, bytes, failure, without_files };
    log.last = Some(run);
    log.entries.insert(0, entry);
    log.entries.truncate(ENTRIES_MAX);
    write(context, &log).await
}

async fn write(context: &BackupContext, log: &BackupLog) -> anyhow::Result<()> {
    let value = record::encode(log).into();
    context.store.set(TypedKey::Backup(BackupKey::Log).key(), value).await?;
    Ok(())
}

/// Returns the name of a copy, which sorts by time.
fn name(at: Timestamp) -> anyhow::Result<String> {
    let seconds = i64::try_from(at.0 / 1000)?;
    let format = format_description!("cortex-[year][month][day]T[hour][minute][second]Z.age");
    Ok(OffsetDateTime::from_unix_timestamp(seconds)?.format(&format)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_a_schedule() {
        for good in ["03:00", "3:05", "23:59", "00:00"] {
            assert!(daily(good).is_ok(), "{good}");
        }
        for bad in ["3", "24:00", "03:60", "*:*", "03:00:00", "", ":", "-1:00", "03: 0"] {
            let error = daily(bad).expect_err(bad).to_string();
            assert!(error.contains("such as 03:00"), "{error}");
        }
    }

    #[test]
    fn names_sort_by_time() {
        assert_eq!(name(Timestamp(1_795_834_800_999)).unwrap(), "cortex-20261128T030000Z.age");
    }
}
