//! `cortex scale web=5 worker=2`; without arguments it shows how the application is scaled.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;

use super::{App, Json, Session, output};
use api_types::Scaled;
use client::encode;

#[derive(Debug, Args)]
pub struct Scale {
    /// PROCESS=COUNT
    #[arg(value_name = "PROCESS=COUNT")]
    counts: Vec<String>,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

impl Scale {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let counts = parse(&self.counts)?;
        let name = self.app.name()?;
        let path = format!("/v1/apps/{}/scale", encode(name.as_str()));
        if counts.is_empty() {
            let scaled: Scaled = session.client.get(&path).await?;
            if !self.json.json && scaled.processes.is_empty() {
                output::say(&format!("{name} has no process types."));
                return Ok(());
            }
            return print(&scaled, self.json);
        }
        let words: Vec<&str> = counts.keys().map(String::as_str).collect();
        output::begin(&format!("Scaling {}", words.join(", ")));
        let scaled: Scaled = output::finish(session.client.post(&path, &counts).await)?;
        let now: Vec<String> = counts
            .keys()
            .map(|process| format!("{process} at {}", scaled.processes.get(process).unwrap_or(&0)))
            .collect();
        output::say(&format!("done, now running {}", now.join(", ")));
        if self.json.json { output::json(&scaled) } else { Ok(()) }
    }
}

fn print(scaled: &Scaled, json: Json) -> anyhow::Result<()> {
    if json.json {
        return output::json(scaled);
    }
    let words: Vec<String> =
        scaled.processes.iter().map(|(process, count)| format!("{process}={count}")).collect();
    output::print(&words.join(" "))
}

/// Parses `web=5`, and Fly's and Dokku's `web:5`.
fn parse(words: &[String]) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut counts = BTreeMap::new();
    for word in words {
        let (process, count) = word
            .split_once(['=', ':'])
            .with_context(|| format!("'{word}' is not understood: write for example web=5"))?;
        let count: u32 = count.parse().with_context(|| {
            format!(
                "'{word}' is not understood: '{count}' is not a number; write for example web=5"
            )
        })?;
        anyhow::ensure!(
            counts.insert(process.to_string(), count).is_none(),
            "'{process}' is given twice: give it once"
        );
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(Into::into).collect() };
        assert_eq!(
            parse(&words("web=5 worker:2")).unwrap(),
            [("web".into(), 5), ("worker".into(), 2)].into()
        );
        for bad in ["web", "web=x", "web=-1", "web=1 web=2", "web=99999999999"] {
            assert!(parse(&words(bad)).is_err(), "{bad}");
        }
    }
}
