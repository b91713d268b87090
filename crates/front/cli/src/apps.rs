//! `cortex apps`, `apps create`, `apps destroy`.

use clap::{Args, Subcommand};

use super::{Json, Session, output};
use api_types::{ApplicationRow, CreateApplication, Destroyed};
use client::encode;

#[derive(Debug, Args)]
pub struct Apps {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create an application to be pushed to later
    Create {
        name: String,
        /// Its framework, where detection should not decide
        #[arg(long = "type", value_name = "TYPE")]
        framework: Option<String>,
        /// Its public port [default: the first free one from 8000 on]
        #[arg(long)]
        port: Option<u16>,
        #[command(flatten)]
        json: Json,
    },
    /// Stop an application and remove it with all its releases
    Destroy {
        name: String,
        /// Accepted for scripts: naming the application is the confirmation
        #[arg(long, hide = true)]
        yes: bool,
    },
    /// List all applications
    List {
        #[command(flatten)]
        json: Json,
    },
}

impl Apps {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None => list(session, self.json).await,
            Some(Action::List { json }) => list(session, json).await,
            Some(Action::Create { name, framework, port, json }) => {
                create(session, CreateApplication { name, framework, port }, json).await
            }
            Some(Action::Destroy { name, yes: _ }) => destroy(session, &name).await,
        }
    }
}

async fn list(session: &Session, json: Json) -> anyhow::Result<()> {
    let rows: Vec<ApplicationRow> = session.client.get("/v1/apps").await?;
    if json.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::say("There are no applications deployed. `cortex push DIR` deploys one.");
        return Ok(());
    }
    print(&rows)
}

pub fn print(rows: &[ApplicationRow]) -> anyhow::Result<()> {
    let cells = rows.iter().map(|row| {
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let instances = format!("{}/{}", row.ready, row.wanted);
        vec![
            row.name.clone(),
            cell(&row.framework),
            cell(&row.release),
            state(row),
            instances,
            cell(&row.url),
        ]
    });
    let cells: Vec<Vec<String>> = cells.collect();
    output::table(&["NAME", "TYPE", "RELEASE", "STATE", "READY", "URL"], &cells)
}

/// Returns the state in words; one that is closed may run all the same.
pub fn state(row: &ApplicationRow) -> String {
    match &row.maintenance_since {
        Some(_) => format!("{}, in maintenance", row.state),
        None => row.state.clone(),
    }
}

async fn create(session: &Session, asked: CreateApplication, json: Json) -> anyhow::Result<()> {
    output::begin(&format!("Creating {}", asked.name));
    let row: ApplicationRow = output::finish(session.client.post("/v1/apps", &asked).await)?;
    output::say("done");
    if json.json {
        return output::json(&row);
    }
    output::say(&format!("Push to it with `cortex push DIR -a {}`", row.name));
    let port = row.port.map(|port| format!("\t{port}")).unwrap_or_default();
    output::print(&format!("{}{port}", row.name))
}

async fn destroy(session: &Session, name: &str) -> anyhow::Result<()> {
    output::begin(&format!("Destroying {name}"));
    let path = format!("/v1/apps/{}", encode(name));
    let gone: Destroyed = output::finish(session.client.delete(&path).await)?;
    output::say("done");
    if !gone.stopped {
        output::say("Some of its processes are still stopping: `cortex ps` shows them");
    }
    if let Some(kept) = gone.kept {
        output::say(&format!("What it stored itself was kept in {kept}"));
    }
    Ok(())
}
