//! `cortex ps`.

use std::collections::BTreeMap;

use clap::Args;

use super::{App, Json, Session, output};
use api_types::{ApplicationShown, InstanceRow};
use client::encode;

#[derive(Debug, Args)]
pub struct Ps {
    #[command(flatten)]
    app: App,
    /// List the processes of all applications
    #[arg(long, conflicts_with = "app")]
    all: bool,
    #[command(flatten)]
    json: Json,
}

impl Ps {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        if self.all {
            let rows: Vec<InstanceRow> = session.client.get("/v1/ps").await?;
            if self.json.json {
                return output::json(&rows);
            }
            if rows.is_empty() {
                output::say("Nothing is running.");
            }
            return rows
                .iter()
                .try_for_each(|row| output::print(&format!("{}/{}", row.application, line(row))));
        }
        let name = self.app.name()?;
        let path = format!("/v1/apps/{}", encode(name.as_str()));
        let rows: Vec<InstanceRow> = session.client.get(&format!("{path}/ps")).await?;
        if self.json.json {
            return output::json(&rows);
        }
        let shown: ApplicationShown = session.client.get(&path).await?;
        if shown.row.state.starts_with("waiting") {
            output::complain(&format!("{name} is {}", shown.row.state));
        }
        if rows.is_empty() {
            output::say(&format!("{name} has no running instances."));
            return Ok(());
        }
        let commands: BTreeMap<&str, &str> = shown
            .processes
            .iter()
            .map(|row| (row.process.as_str(), row.command.as_str()))
            .collect();
        let mut processes: BTreeMap<&str, Vec<&InstanceRow>> = BTreeMap::new();
        for row in &rows {
            processes.entry(&row.process).or_default().push(row);
        }
        for (process, rows) in processes {
            let unknown = match process {
                "run" => "by people",
                cron if cron.starts_with("cron.") => "scheduled, its last run",
                _ => "no longer in the release",
            };
            let command = commands.get(process).copied().unwrap_or(unknown);
            output::print(&format!("=== {process}: {command} ({})", rows.len()))?;
            for row in rows {
                output::print(&line(row))?;
            }
        }
        Ok(())
    }
}

fn line(row: &InstanceRow) -> String {
    let state = if row.state == "ready" { "up" } else { &row.state };
    let mut first = format!("{}.{}: {state}", row.process, row.slot);
    if let Some(started_at) = &row.started_at {
        first.push_str(&format!(" {}", output::time(started_at)));
    }
    let mut parts = vec![first];
    parts.push(row.release.clone());
    parts.push(format!("on {}", row.node));
    parts.extend(row.pid.map(|pid| format!("pid {pid}")));
    parts.extend(row.ports.iter().map(|(id, port)| format!("{id} at {port}")));
    parts.extend(row.memory_bytes.map(output::bytes));
    if row.restarts > 0 {
        parts.push(output::count(row.restarts.into(), "restart"));
    }
    parts.extend(row.reason.clone());
    if let Some(session) = &row.session {
        let attached = match (session.attached, session.detached) {
            (true, _) => "",
            (false, true) => " (detached)",
            (false, false) if row.state == "ready" => " (cut off)",
            (false, false) => "",
        };
        parts.push(format!("by {}, {}{attached}", session.by, session.id));
    }
    parts.join(", ")
}
