//! `cortex undo`: takes back the last change of an application, or the one that is named.

use clap::Args;

use super::{App, Json, Session, deploy, output};
use api_types::undo::{ChangeRow, ChangesShown, UndoAsked, Undone};
use client::encode;

#[derive(Debug, Args)]
pub struct Undo {
    /// The change to take back, as --list calls it [default: the last one, if it is yours]
    #[arg(long, value_name = "CHANGE", conflicts_with_all = ["list", "dry_run"])]
    change: Option<String>,
    /// List the changes that there are, and which can be taken back
    #[arg(long)]
    list: bool,
    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

impl Undo {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let app = encode(name.as_str());
        if self.list || self.dry_run {
            let path = format!("/v1/apps/{app}/changes");
            let shown: ChangesShown = session.client.get(&path).await?;
            return match (self.list, self.json.json) {
                (true, _) => list(&shown, self.json),
                (false, true) => output::json(&shown),
                (false, false) => preview(&shown),
            };
        }
        output::begin(&format!("Taking back a change of {name}"));
        let asked = UndoAsked { change: self.change };
        let path = format!("/v1/apps/{app}/undo");
        let undone: Undone = output::finish(session.client.post(&path, &asked).await)?;
        output::say("done");
        output::say(&format!("Taken back: {}", said(&undone.taken_back)));
        output::say(&format!("Now: {}", output::plain(&undone.did.join("; "))));
        for note in &undone.notes {
            output::say(&format!("Note: {}", output::plain(note)));
        }
        if undone.released.is_some() {
            output::say("Code and variables go back; databases and stored files stay as they are.");
        }
        output::say(&format!("To take this back, too: cortex undo -a {name}"));
        if self.json.json {
            output::json(&undone)?;
        }
        match &undone.released {
            Some(released) => deploy::follow(session, released, deploy::Url::Hidden).await,
            None => Ok(()),
        }
    }
}

fn preview(shown: &ChangesShown) -> anyhow::Result<()> {
    match (&shown.would, &shown.refused) {
        (Some(would), _) => {
            let last = shown.changes.first().map(said).unwrap_or_default();
            output::print(&format!("Would take back: {last}"))?;
            output::print(&format!("By: {}", output::plain(&would.join("; "))))
        }
        (None, refused) => {
            let why = refused.as_deref().unwrap_or("nothing can be taken back");
            output::print(&output::plain(why))
        }
    }
}

/// Returns a change as a line says it.
fn said(row: &ChangeRow) -> String {
    let note = row.note.as_ref().map(|note| format!(" \"{note}\"")).unwrap_or_default();
    let line = format!("{} ({}, {}){note}", row.what, row.who, output::time(&row.at));
    output::plain(&line)
}

fn list(shown: &ChangesShown, json: Json) -> anyhow::Result<()> {
    let none = format!("No change of {} is on record that you could take back.", shown.application);
    let head = ["CHANGE", "WHEN", "WHO", "WHAT", "NOTE", "UNDO"];
    output::list(json, &shown.changes, &none, &head, |row| {
        vec![
            row.change.clone(),
            output::time(&row.at),
            row.who.clone(),
            output::plain(&row.what),
            output::plain(row.note.as_deref().unwrap_or_default()),
            output::plain(row.obstacle.as_deref().unwrap_or("yes")),
        ]
    })
}
