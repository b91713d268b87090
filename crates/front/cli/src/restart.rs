//! `cortex restart`.

use clap::Args;

use super::{App, Session, output};
use api_types::Scaled;
use client::encode;

#[derive(Debug, Args)]
pub struct Restart {
    #[command(flatten)]
    app: App,
}

impl Restart {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        output::begin(&format!("Restarting {name}"));
        let path = format!("/v1/apps/{}/restart", encode(name.as_str()));
        let scaled: Scaled = output::finish(session.client.post(&path, &()).await)?;
        let instances: u64 = scaled.processes.values().map(|count| u64::from(*count)).sum();
        let instances = output::count(instances, "instance");
        output::say(&format!("done, replacing {instances} one after another"));
        Ok(())
    }
}
