//! `cortex logs`.

use clap::Args;

use super::{App, Json, Session, output};
use api_types::LogLine;
use client::encode;

#[derive(Debug, Args)]
pub struct Logs {
    /// Go on with new lines as they come
    #[arg(short = 'f', short_alias = 't', long = "follow", visible_alias = "tail")]
    follow: bool,
    /// How many of the last lines to show
    #[arg(short = 'n', long = "num", value_name = "N", default_value_t = 100)]
    lines: usize,
    /// Only lines of one process type (web), one instance (web.1) or the platform (cortex)
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
            "/v1/apps/{}/logs?lines={}&follow={}&nodes={}{}",
            encode(name.as_str()),
            self.lines,
            self.follow,
            self.json.json,
            process.unwrap_or_default()
        );
        let mut lines = session.client.lines(&path).await?;
        let (mut any, mut painted) = (false, output::Painted::for_stdout());
        while let Some(line) = lines.next::<LogLine>().await? {
            if line.remark {
                output::say(&format!("cortex: {}", line.text));
                continue;
            }
            any = true;
            if self.json.json {
                output::print(&serde_json::to_string(&line)?)?;
            } else {
                print(&line, &mut painted)?;
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

fn print(line: &LogLine, painted: &mut output::Painted) -> anyhow::Result<()> {
    let time = line.time.as_deref().unwrap_or("-");
    let source = match &line.node {
        Some(node) => format!("{}@{node}", line.source),
        None => line.source.clone(),
    };
    let text = painted.line(&source, &line.text);
    let head = output::plain(&format!("{time} app[{source}]: "));
    output::print_painted(&format!("{head}{text}"))
}
