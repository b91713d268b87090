//! `cortex persist`: the files of an application that outlive its releases.

use clap::{Args, Subcommand};
use serde_json::json;

use super::{App, Json, Session, deploy, output};
use api_types::PersistShown;
use client::encode;

#[derive(Debug, Args)]
pub struct Persist {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep files and directories across releases; what the running one wrote there is kept
    Add {
        /// A path in the application's directory, or '~/…' below its HOME; a slash at the end says
        /// that it is a directory
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Show what is kept, and where
    List {
        #[command(flatten)]
        app: App,
        #[command(flatten)]
        json: Json,
    },
}

impl Persist {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let outer = self.app;
        match self.command {
            None => list(session, &outer, self.json).await,
            Some(Command::List { app, json }) => list(session, &app.or(outer), json).await,
            Some(Command::Add { paths, app }) => add(session, &app.or(outer), &paths).await,
        }
    }
}

async fn list(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let at = format!("/v1/apps/{}/persist", encode(app.name()?.as_str()));
    let shown: PersistShown = session.client.get(&at).await?;
    if json.json { output::json(&shown) } else { print(&shown) }
}

async fn add(session: &Session, app: &App, paths: &[String]) -> anyhow::Result<()> {
    let name = app.name()?;
    let at = format!("/v1/apps/{}/persist", encode(name.as_str()));
    output::begin(&format!("Keeping {} of {name}", paths.join(", ")));
    let answer = session.client.post(&at, &json!({ "paths": paths })).await;
    let shown: PersistShown = output::finish(answer)?;
    let Some(released) = &shown.released else {
        output::say("done");
        return Ok(());
    };
    output::say(&format!("done, {}", released.release));
    deploy::follow(session, released, deploy::Url::Hidden).await
}

fn print(shown: &PersistShown) -> anyhow::Result<()> {
    let PersistShown { application, paths, place, holder, .. } = shown;
    if paths.is_empty() {
        output::say(&format!(
            "{application} keeps nothing over its releases but what is in $CORTEX_PERSIST, which is \
             {place}: `cortex persist add PATH` keeps a path of its own"
        ));
        return Ok(());
    }
    let holder = holder.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    output::say(&format!("{application} keeps in {place}{holder}:"));
    paths.iter().try_for_each(|path| output::print(path))
}
