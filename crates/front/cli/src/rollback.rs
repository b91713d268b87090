//! `cortex rollback [vN]`.

use clap::Args;

use super::{App, Session, deploy, output};
use api_types::Released;
use client::encode;

#[derive(Debug, Args)]
pub struct Rollback {
    /// The release to go back to [default: what served before]
    #[arg(value_name = "RELEASE")]
    release: Option<String>,
    #[command(flatten)]
    app: App,
}

impl Rollback {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let path = format!("/v1/apps/{}/rollback", encode(name.as_str()));
        let to = self.release.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        output::begin(&format!("Rolling back {name}{to}"));
        let asked = api_types::Rollback { to: self.release };
        let released: Released = output::finish(session.client.post(&path, &asked).await)?;
        output::say(&format!("done, {}", released.release));
        output::say("Code and variables go back; databases and stored files stay as they are.");
        deploy::follow(session, &released, deploy::Url::Printed).await
    }
}
