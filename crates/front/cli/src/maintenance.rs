//! `cortex maintenance on|off`: closes an application to its clients, and opens it again.

use clap::{Args, ValueEnum};

use super::{App, Json, Session, output};
use api_types::maintenance::{MaintenanceAsked, MaintenanceShown};
use client::encode;

#[derive(Debug, Args)]
pub struct Maintenance {
    /// Whether it is closed; without, what it is now is shown
    state: Option<MaintenanceState>,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MaintenanceState {
    On,
    Off,
}

impl Maintenance {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let path = format!("/v1/apps/{}/maintenance", encode(name.as_str()));
        let shown: MaintenanceShown = match self.state {
            None => session.client.get(&path).await?,
            Some(state) => {
                let on = state == MaintenanceState::On;
                let doing = if on { "Closing" } else { "Opening" };
                output::begin(&format!("{doing} {name}"));
                let asked = MaintenanceAsked { on };
                let shown = output::finish(session.client.post(&path, &asked).await)?;
                output::say("done");
                if on {
                    output::say(&format!(
                        "Clients get status 503 and a page; instances run on. Open it again with: \
                         cortex maintenance off -a {name}"
                    ));
                }
                shown
            }
        };
        if self.json.json {
            return output::json(&shown);
        }
        match (self.state, &shown.since) {
            (Some(_), _) => Ok(()),
            (None, Some(since)) => output::print(&format!("on, for {}", output::time(since))),
            (None, None) => output::print("off"),
        }
    }
}
