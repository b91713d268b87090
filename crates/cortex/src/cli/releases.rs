//! `cortex releases`.

use clap::Args;

use super::{App, Json, Session, output};
use crate::api::wire::ReleaseRow;
use crate::client::encode;

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
                    row.note.clone(),
                    row.author.clone(),
                    output::since(&row.created_at),
                    row.state.clone(),
                ]
            })
            .collect();
        output::table(&["RELEASE", "WHAT", "BY", "WHEN", "STATE"], &cells)
    }
}
