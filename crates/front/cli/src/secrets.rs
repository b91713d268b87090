//! `cortex secrets`, `secrets rotate`: how the platform seals what must not be read.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use tokio::time::Instant;

use super::{Json, Session, output};
use api_types::secrets::{RotationAsked, SecretsShown};

/// The interval between two looks at a rotation.
const POLL: Duration = Duration::from_millis(200);
/// The time after which what a rotation waits for is said; it takes a second where all run.
const SAID_AFTER: Duration = Duration::from_secs(3);

const ROTATE_HELP: &str = "\
All members that keep the store fetch the new key, then seal with it, then seal anew what is there,
and forget the old key. Nothing stops meanwhile. Ctrl-C ends the waiting alone; a member that is
killed goes on when it is back.";

#[derive(Debug, Args)]
pub struct Secrets {
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Seal everything with another key
    #[command(after_help = ROTATE_HELP)]
    Rotate {
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
        /// Remove secrets that no key opens any more, as all copies of their key are lost
        #[arg(long)]
        give_up_lost: bool,
        #[command(flatten)]
        json: Json,
    },
}

impl Secrets {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.action {
            None => {
                let shown: SecretsShown = session.client.get(PATH).await?;
                print(&shown, self.json.json)
            }
            Some(Action::Rotate { no_wait, give_up_lost, json }) => {
                let json = json.json || self.json.json;
                rotate(session, no_wait, RotationAsked { give_up_lost }, json).await
            }
        }
    }
}

const PATH: &str = "/v1/secrets";

async fn rotate(
    session: &Session,
    no_wait: bool,
    asked: RotationAsked,
    json: bool,
) -> anyhow::Result<()> {
    let mut shown: SecretsShown = session.client.post("/v1/secrets/rotate", &asked).await?;
    for key in &shown.removed {
        output::complain(&format!("{key} was removed: no key opened it. Set it again."));
    }
    let (began, mut said) = (Instant::now(), None);
    while !no_wait && !shown.settled {
        tokio::time::sleep(POLL).await;
        shown = session.client.get(PATH).await?;
        if began.elapsed() > SAID_AFTER && shown.waits != said {
            if let Some(waits) = &shown.waits {
                output::say(&format!("Waiting: {waits}"));
            }
            said = shown.waits.clone();
        }
    }
    if json {
        return output::json(&shown);
    }
    match (&shown.sealed_with, shown.settled) {
        (Some(key), true) => {
            output::say(&format!(
                "All secrets are sealed with the key {key}; the one before is gone."
            ));
        }
        (Some(_), false) => {
            output::say("Secrets get another key; `cortex secrets` shows how far it is.");
        }
        (None, _) if asked.give_up_lost => {
            output::say("Secrets get a new key; `cortex secrets` shows how far it is.");
        }
        (None, _) => bail!("secrets are not sealed; `cortex secrets` says why"),
    }
    Ok(())
}

fn print(shown: &SecretsShown, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(shown);
    }
    for line in lines(shown) {
        output::print(&line)?;
    }
    Ok(())
}

fn lines(shown: &SecretsShown) -> Vec<String> {
    let mut lines = Vec::new();
    match &shown.sealed_with {
        Some(key) => lines.push(format!("Sealed with the key {key}.")),
        None => {
            lines.push("Secrets are not sealed: they lie in the store as they were set.".into())
        }
    }
    if let Some(next) = &shown.next {
        lines.push(format!("The key {next} follows once all members have it."));
    }
    for member in &shown.members {
        let node = &member.node;
        let has = match (&member.keys, &member.sealed_with) {
            (None, _) => "runs a build that knows no sealed secrets".to_owned(),
            (Some(keys), _) if keys.is_empty() => "has no key yet".to_owned(),
            (Some(keys), None) => format!("has {}", keys.join(", ")),
            (Some(keys), Some(seals)) => format!("has {}, seals with {seals}", keys.join(", ")),
        };
        lines.push(format!("  {node}  {}", has));
    }
    for counted in &shown.values {
        let count = output::count(counted.count as u64, "secret");
        lines.push(match (&counted.key, counted.opens) {
            (None, _) => format!("{count} lie in the store as they were set."),
            (Some(key), true) => format!("{count} sealed with {key}."),
            (Some(key), false) => {
                format!("{count} sealed with {key}, which this node does not have.")
            }
        });
    }
    if let Some(waits) = &shown.waits {
        lines.push(format!("Waiting: {}", waits));
    }
    if let Some(asked) = &shown.asked {
        lines.push(format!("Another key was asked for last at {}.", asked));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::secrets::{SecretsCount, SecretsMember};

    #[test]
    fn what_is_wrong_is_said() {
        let shown = SecretsShown {
            sealed_with: Some("aa".into()),
            members: vec![
                SecretsMember { node: "n1".into(), keys: None, sealed_with: None },
                SecretsMember {
                    node: "n2".into(),
                    keys: Some(vec!["aa".into()]),
                    sealed_with: Some("aa".into()),
                },
            ],
            values: vec![SecretsCount { key: Some("bb".into()), count: 2, opens: false }],
            waits: Some("n1 run an old build".into()),
            ..SecretsShown::default()
        };
        let said = lines(&shown).join("\n");
        for wanted in [
            "Sealed with the key aa.",
            "n1  runs a build that knows no sealed secrets",
            "n2  has aa, seals with aa",
            "2 secrets sealed with bb, which this node does not have.",
            "Waiting: n1 run an old build",
        ] {
            assert!(said.contains(wanted), "{wanted} in {said}");
        }
    }
}
