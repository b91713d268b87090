//! `cortex logs`.

use clap::Args;

use super::{App, Json, Session, output};
use crate::api::wire::LogLine;
use crate::client::encode;

#[derive(Debug, Args)]
pub struct Logs {
    /// Go on with what comes
    #[arg(short = 'f', short_alias = 't', long = "follow", visible_alias = "tail")]
    follow: bool,
    /// How many of the last lines
    #[arg(short = 'n', long = "num", value_name = "N", default_value_t = 100)]
    lines: usize,
    /// Of one process type (web), one instance (web.1) or the platform (cortex)
    #[arg(short = 'p', long = "process", visible_alias = "ps", value_name = "PROCESS")]
    process: Option<String>,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

impl Logs {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let process = self.process.as_deref().map(|p| format!("&process={}", encode(p)));
        let path = format!(
            "/v1/apps/{}/logs?lines={}&follow={}{}",
            encode(name.as_str()),
            self.lines,
            self.follow,
            process.unwrap_or_default()
        );
        let mut lines = session.client.lines(&path).await?;
        let mut any = false;
        while let Some(line) = lines.next::<LogLine>().await? {
            any = true;
            if self.json.json {
                output::print(&serde_json::to_string(&line)?)?;
            } else {
                let time = line.time.as_deref().unwrap_or("-");
                output::print(&format!("{time} app[{}]: {}", line.source, line.text))?;
            }
        }
        if !any && self.lines > 0 && !self.json.json {
            output::say(&format!(
                "{name} has no log lines{}.",
                match &self.process {
                    Some(process) => format!(" of {process}"),
                    None => String::new(),
                }
            ));
        }
        Ok(())
    }
}
