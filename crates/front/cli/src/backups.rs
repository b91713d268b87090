//! `cortex backups`: copies of the cluster that are made by themselves, once a day.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use super::export::ensure_here;
use super::pass_phrase::PassPhraseArgs;
use super::{Json, Session, output};
use api_types::NodeStatus;
use api_types::backup::{BackupAsked, BackupRow, BackupSchedule, BackupsShown, KEEP_USUAL};

const PATH: &str = "/v1/backups";
/// The interval between two looks at one that is being made.
const POLL: Duration = Duration::from_millis(300);
const HELP: &str = "\
  cortex backups schedule --at '03:00 Europe/Berlin' --to /mnt/backups --with-files
  cortex backups schedule --at 03:00 --hook 'rclone rcat \"far:cortex/$CORTEX_BACKUP\"'
  cortex backups capture                       one now
  cortex import /mnt/backups/cortex-….age      on a new node

Each is what `cortex export` writes, with the pass-phrase that you say here, which the cluster keeps
sealed. Keep it elsewhere too: whoever lost the cluster needs it. One node makes it at a time.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Backups {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Have one made every day
    Schedule(ScheduleArgs),
    /// Have no more made; those that there are stay
    Unschedule,
    /// Have one made now, as the schedule says
    Capture,
}

#[derive(Debug, Args)]
struct ScheduleArgs {
    /// When: 'HH:MM', or 'HH:MM ZONE' such as '03:00 Europe/Berlin'; UTC without a zone
    #[arg(long, value_name = "TIME")]
    at: String,
    /// The directory that they go to, on this node or the one of --node
    #[arg(long, value_name = "DIR", required_unless_present = "hook")]
    to: Option<PathBuf>,
    /// A shell command that gets each on its stdin, and its name in $CORTEX_BACKUP
    #[arg(long, value_name = "COMMAND", conflicts_with = "to")]
    hook: Option<String>,
    /// The node that makes them, or 'any', as for a directory that all nodes share [default: this
    /// one for a directory, any for a hook]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// How many the directory keeps
    #[arg(long, value_name = "COUNT", default_value_t = KEEP_USUAL)]
    keep: u32,
    /// Also the files that applications keep
    #[arg(long)]
    with_files: bool,
    #[command(flatten)]
    pass_phrase: PassPhraseArgs,
}

impl Backups {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = &session.client;
        let json = self.json;
        match self.action {
            None => print(&client.get(PATH).await?, json),
            Some(Action::Schedule(args)) => {
                ensure_here(session, "backed up")?;
                let asked = asked(session, args).await?;
                output::begin("Scheduling back-ups");
                let shown = output::finish(client.post(PATH, &asked).await);
                let shown: BackupsShown = shown?;
                let schedule = shown.schedule.as_ref().context("the node did not keep it")?;
                output::say(&format!("done, {}", words(schedule)));
                output::say("Try it with: cortex backups capture");
                if json.json { output::json(&shown) } else { Ok(()) }
            }
            Some(Action::Unschedule) => {
                ensure_here(session, "backed up")?;
                output::begin("Ending back-ups");
                let shown: BackupsShown = output::finish(client.delete(PATH).await)?;
                output::say("done, those that there are stay");
                if json.json { output::json(&shown) } else { Ok(()) }
            }
            Some(Action::Capture) => {
                ensure_here(session, "backed up")?;
                capture(session, json).await
            }
        }
    }
}

async fn asked(session: &Session, args: ScheduleArgs) -> anyhow::Result<BackupAsked> {
    let (at, timezone) = match args.at.split_once(' ') {
        Some((at, zone)) => (at.to_owned(), zone.trim().to_owned()),
        None => (args.at, "UTC".to_owned()),
    };
    let directory = args.to.map(|to| {
        let absolute = std::path::absolute(&to).context("the directory")?;
        absolute.into_os_string().into_string().ok().context("a directory's name that is text")
    });
    let node = match (args.node.as_deref(), &directory) {
        (Some("any"), _) | (None, None) => None,
        (Some(node), _) => Some(node.to_owned()),
        (None, Some(_)) => {
            let status: NodeStatus = session.client.get("/v1/status").await?;
            Some(status.node)
        }
    };
    Ok(BackupAsked {
        at,
        timezone,
        directory: directory.transpose()?,
        hook: args.hook,
        node,
        keep: args.keep,
        with_files: args.with_files,
        pass_phrase: args.pass_phrase.choose().await?.as_str().to_owned(),
    })
}

async fn capture(session: &Session, json: Json) -> anyhow::Result<()> {
    output::begin("Making a back-up");
    let made = output::finish(made(session).await)?;
    if let Some(why) = &made.failure {
        output::say("!");
        bail!("the back-up failed on node {}: {why}", made.node);
    }
    output::say(&format!("done, {} with {}", made.name, output::bytes(made.bytes)));
    if !made.without_files.is_empty() {
        let names = made.without_files.join(", ");
        output::complain(&format!("Files that these applications keep are not in it: {names}"));
    }
    if json.json { output::json(&made) } else { Ok(()) }
}

/// Orders one, and waits until it is made.
async fn made(session: &Session) -> anyhow::Result<BackupRow> {
    let asked = session.client.post(&format!("{PATH}/capture"), &()).await?;
    let BackupsShown { asked_ms, .. } = asked;
    let asked_ms = asked_ms.context("the node did not take the order")?;
    loop {
        let shown: BackupsShown = session.client.get(PATH).await?;
        if let Some(made) = shown.backups.into_iter().find(|row| row.started_ms >= asked_ms) {
            return Ok(made);
        }
        tokio::time::sleep(POLL).await;
    }
}

fn words(schedule: &BackupSchedule) -> String {
    let place = match (&schedule.directory, &schedule.hook) {
        (Some(directory), _) => {
            format!("to {directory}, which keeps {}", copies(schedule.keep))
        }
        (None, hook) => format!("to the command `{}`", hook.as_deref().unwrap_or_default()),
    };
    let node = match &schedule.node {
        Some(node) => format!("by node {node}"),
        None => "by one of the nodes".into(),
    };
    let files = if schedule.with_files { ", with files" } else { "" };
    format!("every day at {} {} {place}, {node}{files}", schedule.at, schedule.timezone)
}

fn print(shown: &BackupsShown, json: Json) -> anyhow::Result<()> {
    if json.json {
        return output::json(shown);
    }
    match &shown.schedule {
        Some(schedule) => output::print(&format!("Back-ups {}", words(schedule)))?,
        None => output::say(
            "No back-ups are scheduled; `cortex backups schedule --at 03:00 --to DIR` has them \
             made.",
        ),
    }
    if let Some(since) = &shown.running_since {
        output::print(&format!("One is being made since {}", output::time(since)))?;
    }
    if let Some(problem) = &shown.problem {
        output::complain(problem);
    }
    if shown.backups.is_empty() {
        return Ok(());
    }
    let cells = |row: &BackupRow| {
        let what = match (&row.failure, row.without_files.as_slice()) {
            (Some(why), _) => format!("failed: {why}"),
            (None, []) => row.name.clone(),
            (None, without) => format!("{}, without files of {}", row.name, without.join(", ")),
        };
        let size = if row.failure.is_none() { output::bytes(row.bytes) } else { String::new() };
        vec![output::time(&row.started_at), row.node.clone(), size, what]
    };
    let rows: Vec<_> = shown.backups.iter().map(cells).collect();
    output::table(&["WHEN", "NODE", "SIZE", "BACK-UP"], &rows)
}

fn copies(count: u32) -> String {
    if count == 1 { "one copy".into() } else { format!("{count} copies") }
}
