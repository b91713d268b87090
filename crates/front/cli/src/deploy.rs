//! The display of a rollout while it happens, for every command that makes a release.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Exit, Session, output};
use api_types::{Progress, Released};
use client::{ClientError, encode};

/// The exit status that a shell reports for a command that was interrupted.
const INTERRUPTED: u8 = 130;

/// Attempts to watch on after a cut connection, with nothing new between them, and the pause
/// between two: a minute, in which a laptop finds another network.
const ATTEMPTS_MAX: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

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
    let mut shown = Shown::default();
    let mut attempts_left = ATTEMPTS_MAX;
    loop {
        let before = shown.pieces();
        let cut = match watch(session, &path, released, url, &mut shown).await {
            Watched::Ended(ended) => return ended,
            Watched::Cut(error) => error,
        };
        // On this machine no other node answers for this one.
        let refused = matches!(cut.downcast_ref(), Some(ClientError::Problem(_)));
        if session.client.is_local() || refused || attempts_left == 0 {
            return Err(cut.context(lost()));
        }
        if shown.pieces() > before {
            attempts_left = ATTEMPTS_MAX;
        }
        attempts_left -= 1;
        output::remark("(the connection was lost; trying to go on)");
        tokio::time::sleep(PAUSE).await;
    }
}

/// The error of a release that failed, which was shown already.
#[derive(Debug, thiserror::Error)]
#[error("release {release} failed: {why}")]
pub struct ReleaseFailed {
    pub release: String,
    pub why: String,
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_string()
}

/// How a connection ended on which a rollout was watched.
enum Watched {
    Ended(anyhow::Result<()>),
    Cut(anyhow::Error),
}

/// What was shown of a rollout, which a second connection tells again from its beginning.
#[derive(Default)]
struct Shown {
    phases: usize,
    lines: usize,
    said: ShownLines,
}

impl Shown {
    fn pieces(&self) -> usize {
        self.phases + self.lines
    }
}

async fn watch(
    session: &Session,
    path: &str,
    released: &Released,
    url: Url,
    shown: &mut Shown,
) -> Watched {
    let mut lines = match session.client.lines(path).await {
        Ok(lines) => lines,
        Err(error) => return Watched::Cut(error),
    };
    let mut painted = output::Painted::for_stderr();
    // The heading waits for the first line, since a build that exists already prints nothing.
    let mut building = None;
    let (mut phases, mut texts) = (0, 0);
    loop {
        let progress = match lines.next::<Progress>().await {
            Ok(Some(progress)) => progress,
            Ok(None) => return Watched::Cut(anyhow::anyhow!("the node went away")),
            Err(error) => return Watched::Cut(error),
        };
        match progress {
            Progress::Phase { phase } => {
                phases += 1;
                if phases <= shown.phases {
                    continue;
                }
                shown.phases = phases;
                building = None;
                let heading = heading(&phase, released).map(|heading| format!("-----> {heading}"));
                match heading {
                    Some(heading) if phase == BUILDING => building = Some(heading),
                    heading => heading.iter().for_each(|heading| output::say(heading)),
                }
            }
            Progress::Line { text } => {
                texts += 1;
                if texts <= shown.lines {
                    continue;
                }
                shown.lines = texts;
                building.take().iter().for_each(|heading| output::say(heading));
                shown.said.note(&text);
                output::say_painted(&format!("       {}", painted.line("", &text)));
            }
            Progress::Done { url: address, warning } => {
                warning.iter().for_each(|warning| output::complain(warning));
                return Watched::Ended(deployed(released, address, url));
            }
            Progress::Overtaken { by } => {
                output::say(&format!("-----> {} was overtaken by {by}", released.release));
                return Watched::Ended(Ok(()));
            }
            Progress::Failed { message, serving } => {
                failed(released, &shown.said.rest(&message), serving.as_deref());
                let (release, why) = (released.release.clone(), first_line(&message));
                return Watched::Ended(Err(ReleaseFailed { release, why }.into()));
            }
        }
    }
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
        Some(serving) => output::remark(&format!("{serving} keeps serving.")),
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
