//! `cortex logs`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use model::ApplicationName;

use super::{App, Json, Session, output};
use api_types::LogLine;
use api_types::position::LogPosition;
use client::{AnswerLines, ClientError, encode};

/// Lines asked for again after a cut connection, for what was printed meanwhile.
const LINES_AGAIN: usize = 10_000;
/// The pause between two attempts to go on; another node answers the first one, as a rule.
const PAUSE: Duration = Duration::from_millis(500);

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

/// How far the lines of each node have come.
type Positions = BTreeMap<Option<String>, LogPosition>;

impl Logs {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let mut painted = output::Painted::for_stdout();
        let (mut seen, mut lost) = (Positions::new(), false);
        // With one node that answers there is nothing to go on with.
        let goes_on = self.follow && !session.client.is_local();
        loop {
            let shown = async {
                let mut lines = session.client.lines(&self.path(&name, goes_on, &seen)).await?;
                if std::mem::take(&mut lost) {
                    output::say("cortex: connected again");
                }
                self.show(&mut lines, &mut seen, &mut painted).await
            };
            match shown.await {
                Ok(()) if !goes_on => break,
                Err(error) if !goes_on || !is_cut(&error) => return Err(error),
                _ => {}
            }
            if !std::mem::replace(&mut lost, true) {
                output::say("cortex: the connection was lost; trying to go on");
            }
            tokio::time::sleep(PAUSE).await;
        }
        if seen.is_empty() && self.lines > 0 && !self.json.json {
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

    /// Prints lines until there are no more, and none that was printed already.
    async fn show(
        &self,
        lines: &mut AnswerLines,
        seen: &mut Positions,
        painted: &mut output::Painted,
    ) -> anyhow::Result<()> {
        let mut before: BTreeMap<_, _> =
            seen.iter().map(|(node, position)| (node.clone(), position.resume())).collect();
        while let Some(line) = lines.next::<LogLine>().await? {
            if line.remark {
                output::say(&format!("cortex: {}", line.text));
                continue;
            }
            if before.get_mut(&line.node).is_some_and(|before| before.was_there(&line.time)) {
                continue;
            }
            seen.entry(line.node.clone()).or_default().note(&line.time);
            if self.json.json {
                output::print(&serde_json::to_string(&line)?)?;
            } else {
                print(&line, painted)?;
            }
        }
        Ok(())
    }

    fn path(&self, name: &ApplicationName, goes_on: bool, seen: &Positions) -> String {
        // The node that is farthest behind says from when lines may be missing.
        let after = seen.values().filter_map(LogPosition::time).min();
        let lines = if after.is_some() { LINES_AGAIN } else { self.lines };
        let process =
            self.process.as_deref().map(|process| format!("&process={}", encode(process)));
        format!(
            "/v1/apps/{}/logs?lines={lines}&follow={}&nodes={}{}{}",
            encode(name.as_str()),
            self.follow,
            self.json.json || goes_on,
            process.unwrap_or_default(),
            after.map(|after| format!("&after={}", encode(after))).unwrap_or_default(),
        )
    }
}

/// Returns whether a connection broke, or no node was reached for now: not that a node refused.
fn is_cut(error: &anyhow::Error) -> bool {
    let refused = matches!(error.downcast_ref(), Some(ClientError::Problem(_)));
    !refused && !super::is_of_output(error)
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
