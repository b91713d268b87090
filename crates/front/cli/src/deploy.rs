//! The display of a rollout while it happens, for every command that makes a release.

use std::collections::VecDeque;

use anyhow::Context;

use super::{Exit, Session, output};
use api_types::{Progress, Released};
use client::encode;

/// The exit status that a shell reports for a command that was interrupted.
const INTERRUPTED: u8 = 130;

/// The phase in which a build is made, or found.
const BUILDING: &str = "building";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Url {
    /// The URL is printed alone on a line of stdout.
    Printed,
    Hidden,
}

/// Shows the rollout until the release serves or has failed. Ctrl-C ends the watching, not the
/// rollout.
pub async fn follow(session: &Session, released: &Released, url: Url) -> anyhow::Result<()> {
    tokio::select! {
        ended = show(session, released, url) => ended,
        _ = tokio::signal::ctrl_c() => {
            let app = &released.application;
            output::say("");
            output::say(&format!(
                "The rollout of {} goes on; see `cortex releases -a {app}`.", released.release
            ));
            Err(Exit(INTERRUPTED).into())
        }
    }
}

async fn show(session: &Session, released: &Released, url: Url) -> anyhow::Result<()> {
    let path = format!(
        "/v1/apps/{}/releases/{}/progress",
        encode(&released.application),
        encode(&released.id)
    );
    let lost = || {
        let app = &released.application;
        format!(
            "the rollout of {} cannot be followed any more; it goes on, on another node if this one \
             is lost: `cortex releases -a {app}`, on any node, says how it ends",
            released.release
        )
    };
    let mut lines = session.client.lines(&path).await.with_context(lost)?;
    let mut painted = output::Painted::for_stderr();
    // The heading waits for the first line, since a build that exists already prints nothing.
    let mut building = None;
    let mut said = ShownLines::default();
    while let Some(progress) = lines.next::<Progress>().await.with_context(lost)? {
        match progress {
            Progress::Phase { phase } => {
                building = None;
                let heading = heading(&phase, released).map(|heading| format!("-----> {heading}"));
                match heading {
                    Some(heading) if phase == BUILDING => building = Some(heading),
                    heading => heading.iter().for_each(|heading| output::say(heading)),
                }
            }
            Progress::Line { text } => {
                building.take().iter().for_each(|heading| output::say(heading));
                said.note(&text);
                output::say_painted(&format!("       {}", painted.line("", &text)));
            }
            Progress::Done { url: address, warning } => {
                warning.iter().for_each(|warning| output::complain(warning));
                return deployed(released, address, url);
            }
            Progress::Overtaken { by } => {
                output::say(&format!("-----> {} was overtaken by {by}", released.release));
                return Ok(());
            }
            Progress::Failed { message, serving } => {
                failed(released, &said.rest(&message), serving.as_deref());
                return Err(Exit(1).into());
            }
        }
    }
    Err(anyhow::anyhow!("the node went away").context(lost()))
}

/// Lines that were shown as they came: a failure need not repeat them.
#[derive(Default)]
struct ShownLines(VecDeque<String>);

impl ShownLines {
    /// The number of lines remembered, more than a failure has of last words.
    const LINES_MAX: usize = 200;

    fn note(&mut self, line: &str) {
        if self.0.len() == ShownLines::LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line.trim().to_owned());
    }

    /// Returns what of a message was not shown yet, and always its first line.
    fn rest(&self, message: &str) -> String {
        let (first, words) = message.split_once('\n').unwrap_or((message, ""));
        let new = words.lines().filter(|line| !self.0.iter().any(|said| said == line.trim()));
        std::iter::once(first).chain(new).collect::<Vec<_>>().join("\n")
    }
}

fn heading(phase: &str, released: &Released) -> Option<String> {
    let release = &released.release;
    Some(match phase {
        BUILDING => format!("Building {release}"),
        "releasing" => "Running release steps".into(),
        "starting" => format!("Starting {release}"),
        _ => return None,
    })
}

fn deployed(released: &Released, address: Option<String>, url: Url) -> anyhow::Result<()> {
    match (address, url) {
        (Some(address), Url::Printed) => {
            output::say("=====> Application deployed:");
            output::print(&address)
        }
        _ => {
            output::say(&format!(
                "=====> {} {} is serving",
                released.application, released.release
            ));
            Ok(())
        }
    }
}

fn failed(released: &Released, message: &str, serving: Option<&str>) {
    output::complain(&format!("{} {} failed:", released.application, released.release));
    output::complain(message);
    match serving {
        Some(serving) => output::complain(&format!("{serving} keeps serving.")),
        None => output::complain("Nothing is serving yet: fix it and push again."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_repeats_nothing_that_was_shown() {
        let mut said = ShownLines::default();
        said.note("  line 2: syntax error");
        let message = "Checking failed: exit status 1\nline 2: syntax error\nand this is new";
        assert_eq!(said.rest(message), "Checking failed: exit status 1\nand this is new");
        assert_eq!(said.rest("Checking failed"), "Checking failed");
        (0..ShownLines::LINES_MAX).for_each(|number| said.note(&number.to_string()));
        assert_eq!(said.rest(message), message);
    }
}
