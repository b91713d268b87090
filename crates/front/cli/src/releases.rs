//! `cortex releases`.

use clap::Args;

use super::{App, Json, Session, output};
use api_types::ReleaseRow;
use client::encode;

#[derive(Debug, Args)]
pub struct Releases {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

impl Releases {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let path = format!("/v1/apps/{}/releases", encode(name.as_str()));
        let rows: Vec<ReleaseRow> = session.client.get(&path).await?;
        if self.json.json {
            return output::json(&rows);
        }
        if rows.is_empty() {
            output::say(&format!("{name} has no releases."));
            return Ok(());
        }
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                vec![
                    row.release.clone(),
                    what(row),
                    row.author.clone(),
                    output::time(&row.created_at),
                    state(row),
                ]
            })
            .collect();
        output::table(&["RELEASE", "WHAT", "BY", "WHEN", "STATE"], &cells)
    }
}

/// Returns what happened, and what was said of it.
fn what(row: &ReleaseRow) -> String {
    match &row.remark {
        Some(remark) => output::plain(&format!("{}: {remark}", row.note)),
        None => output::plain(&row.note),
    }
}

/// Returns the state with the first line of its reason; `--json` has all of it.
fn state(row: &ReleaseRow) -> String {
    match row.why.as_deref().and_then(|why| why.lines().next()) {
        Some(why) => format!("{}: {why}", row.state),
        None => row.state.clone(),
    }
}
