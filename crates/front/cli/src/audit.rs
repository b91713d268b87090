//! `cortex audit`: who changed what, on all nodes.

use clap::Args;

use super::{Json, Session, output};
use api_types::people::AuditRow;
use client::encode;

#[derive(Debug, Args)]
pub struct Audit {
    /// Changes of this application alone
    #[arg(short = 'a', long = "app", value_name = "NAME")]
    app: Option<String>,
    /// The most changes to show, newest first
    #[arg(short = 'n', long = "num", value_name = "COUNT", default_value_t = 100)]
    num: usize,
    #[command(flatten)]
    json: Json,
}

impl Audit {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut path = format!("/v1/audit?limit={}", self.num);
        if let Some(app) = &self.app {
            path.push_str(&format!("&app={}", encode(app)));
        }
        let rows: Vec<AuditRow> = session.client.get(&path).await?;
        let none = "Nothing was changed that is still on record.";
        let head = ["WHEN", "WHO", "WHAT", "OUTCOME", "NODE", "FROM"];
        output::list(self.json, &rows, none, &head, cells)
    }
}

fn cells(row: &AuditRow) -> Vec<String> {
    let who = match &row.token {
        Some(token) => format!("{} ({token})", row.who),
        None => row.who.clone(),
    };
    let outcome = match row.status {
        Some(status) if row.outcome != "done" => format!("{} ({status})", row.outcome),
        _ => row.outcome.clone(),
    };
    vec![
        output::time(&row.at),
        who,
        output::plain(&what(row)),
        outcome,
        row.node.clone(),
        row.from.clone(),
    ]
}

/// Returns what was asked for, what that did to an application, and what was said of it.
fn what(row: &AuditRow) -> String {
    let mut what = format!("{} {}", row.method, row.path);
    if let Some(did) = &row.what {
        what.push_str(&format!(": {did}"));
    }
    if let Some(note) = &row.note {
        what.push_str(&format!(" \"{note}\""));
    }
    what
}
