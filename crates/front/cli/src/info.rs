//! `cortex info`.

use clap::Args;

use super::{App, Json, Session, apps, isolation, output};
use api_types::{ApplicationShown, ServiceRow};
use client::encode;

#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

impl Info {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let shown: ApplicationShown =
            session.client.get(&format!("/v1/apps/{}", encode(name.as_str()))).await?;
        if self.json.json {
            return output::json(&shown);
        }
        output::print(&format!("=== {name}"))?;
        for (label, value) in facts(&shown) {
            output::print(&format!("{:<12} {value}", format!("{label}:")))?;
        }
        Ok(())
    }
}

fn facts(shown: &ApplicationShown) -> Vec<(&'static str, String)> {
    let row = &shown.row;
    let mut facts = vec![("State", apps::state(row))];
    facts.extend(row.url.clone().map(|url| ("URL", url)));
    facts.extend(row.port.map(|port| ("Port", port.to_string())));
    for port in &shown.ports {
        facts.push(("Port", service(port)));
    }
    facts.push(("Hosts", hosts(shown)));
    facts.extend(shown.clashes.iter().map(|clash| ("Clash", clash.clone())));
    let framework =
        row.framework.clone().unwrap_or_else(|| "not known before the first push".into());
    let why = shown.decided_by.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    facts.push(("Type", format!("{framework}{why}")));
    facts.push(("Release", row.release.clone().unwrap_or_else(|| "none".into())));
    facts.push(("Releases", shown.releases.to_string()));
    for process in &shown.processes {
        let instances = format!("{} of {} ready", process.ready, process.wanted);
        let nodes = process.nodes.iter().map(|(node, count)| format!("{count} on {node}"));
        let nodes: Vec<String> = nodes.collect();
        let nodes =
            if nodes.is_empty() { nodes.concat() } else { format!(" ({})", nodes.join(", ")) };
        let command = &process.command;
        facts.push(("Process", format!("{}: {instances}{nodes}: {command}", process.process)));
    }
    if !shown.persist.is_empty() {
        let holder = shown.holder.as_ref().map(|holder| format!(" (on node {holder})"));
        let paths = shown.persist.join(", ");
        facts.push(("Persistent", format!("{paths}{}", holder.unwrap_or_default())));
    }
    facts.extend(wall(shown).map(|wall| ("Isolation", wall)));
    if let Some(rollout) = shown.rollout.as_ref().filter(|rollout| rollout.phase != "done") {
        let target = rollout.target.as_deref().unwrap_or("none");
        facts.push(("Rollout", format!("{target} is {}", rollout.phase)));
        facts.extend(rollout.message.clone().map(|message| ("Because", message)));
    }
    facts.extend(shown.notes.iter().map(|note| ("Note", note.clone())));
    facts.push(("Created", output::time(&row.created_at)));
    facts
}

/// Returns what is around the running release, and who wants that.
fn wall(shown: &ApplicationShown) -> Option<String> {
    let given = shown.isolation.as_deref();
    let mark = shown.isolation_mark.as_ref().map(isolation::mark);
    match (given, mark) {
        (Some(given), Some(mark)) => Some(format!("{given} ({mark})")),
        (None, Some(mark)) => Some(mark),
        (given, None) => given.map(str::to_owned),
    }
}

fn service(row: &ServiceRow) -> String {
    let ServiceRow { port, protocol, process, address, .. } = row;
    let state = match (&row.error, &row.traffic) {
        (Some(error), _) => format!(" ({error})"),
        (None, Some(traffic)) => {
            let [came, went] = [traffic.bytes_in, traffic.bytes_out].map(output::bytes);
            format!(" ({} open, {came} in, {went} out)", traffic.open)
        }
        (None, None) => String::new(),
    };
    format!("{port}/{protocol}: {process}, at {address}{state}")
}

fn hosts(shown: &ApplicationShown) -> String {
    let own = format!("{}.localhost", shown.row.name);
    let all: Vec<String> = std::iter::once(own).chain(shown.domains.iter().cloned()).collect();
    all.join(", ")
}
