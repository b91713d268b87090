//! Shows a rollout while it happens, as every command does that makes a release.

use anyhow::Context;

use super::{Exit, Session, output};
use crate::client::encode;
use crate::wire::{Progress, Released};

/// What the shell reports for a command that was interrupted.
const INTERRUPTED: u8 = 130;

/// The phase in which a build is made, or found.
const BUILDING: &str = "building";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Url {
    /// Alone on a line of stdout.
    Printed,
    Hidden,
}

/// Until the release serves or has failed. Ctrl-C ends the watching, not the rollout.
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
            "nothing more is heard of {}; its rollout goes on, on another node if this one is \
             lost: `cortex releases -a {app}`, on any of them, says how it ends",
            released.release
        )
    };
    let mut lines = session.client.lines(&path).await.with_context(lost)?;
    let mut painted = output::Painted::for_stderr();
    // A build that is there already has nothing to say.
    let mut building = None;
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
                failed(released, &message, serving.as_deref());
                return Err(Exit(1).into());
            }
        }
    }
    Err(anyhow::anyhow!("the node went away").context(lost()))
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
        None => output::complain("Nothing is serving yet: mend it and push again."),
    }
}
