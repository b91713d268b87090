//! `cortex config`, `config set`, `config unset`, `config get`.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{App, Json, Session, deploy, output};
use crate::api::wire::{ConfigChange, Configured};
use crate::client::encode;

#[derive(Debug, Args)]
pub struct Config {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Set variables and release the application with them
    Set {
        #[arg(required = true, value_name = "NAME=VALUE")]
        variables: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Remove variables and release the application without them
    Unset {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Print one variable's value alone
    Get {
        name: String,
        #[command(flatten)]
        app: App,
    },
    /// List all variables
    List {
        #[command(flatten)]
        app: App,
        #[command(flatten)]
        json: Json,
    },
}

impl Config {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let outer = self.app;
        match self.action {
            None => list(session, &outer, self.json).await,
            Some(Action::List { app, json }) => list(session, &app.or(outer), json).await,
            Some(Action::Get { name, app }) => get(session, &app.or(outer), &name).await,
            Some(Action::Set { variables, app }) => {
                let change = assignments(&variables)?;
                apply(session, &app.or(outer), "Setting", change).await
            }
            Some(Action::Unset { names, app }) => {
                let change = names.into_iter().map(|name| (name, None)).collect();
                apply(session, &app.or(outer), "Unsetting", change).await
            }
        }
    }
}

fn assignments(words: &[String]) -> anyhow::Result<ConfigChange> {
    let pair = |word: &String| {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("'{word}' sets nothing: write for example NAME=value"))?;
        Ok((name.to_string(), Some(value.to_string())))
    };
    words.iter().map(pair).collect()
}

async fn read(session: &Session, app: &App) -> anyhow::Result<(String, BTreeMap<String, String>)> {
    let name = app.name()?.to_string();
    let variables = session.client.get(&format!("/v1/apps/{}/config", encode(&name))).await?;
    Ok((name, variables))
}

async fn list(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let (name, variables) = read(session, app).await?;
    if json.json {
        return output::json(&variables);
    }
    if variables.is_empty() {
        output::say(&format!("{name} has no variables."));
        return Ok(());
    }
    let width = variables.keys().map(String::len).max().unwrap_or(0) + 1;
    variables.iter().try_for_each(|(name, value)| {
        output::print(&format!("{:<width$} {value}", format!("{name}:")))
    })
}

async fn get(session: &Session, app: &App, variable: &str) -> anyhow::Result<()> {
    let (name, variables) = read(session, app).await?;
    let value = variables.get(variable).with_context(|| {
        format!("{name} has no variable '{variable}': `cortex config -a {name}` lists all")
    })?;
    output::print(value)
}

async fn apply(
    session: &Session,
    app: &App,
    verb: &str,
    change: ConfigChange,
) -> anyhow::Result<()> {
    let name = app.name()?;
    let names: Vec<&str> = change.keys().map(String::as_str).collect();
    output::begin(&format!("{verb} {} of {name}", names.join(", ")));
    let path = format!("/v1/apps/{}/config", encode(name.as_str()));
    let answer: Configured = output::finish(session.client.post(&path, &change).await)?;
    match answer.released {
        None if answer.changed.is_empty() => {
            output::say("done, nothing changed");
            Ok(())
        }
        None => {
            output::say("done");
            Ok(())
        }
        Some(released) => {
            output::say(&format!("done, {}", released.release));
            released.notes.iter().for_each(|note| output::say(&format!("       {note}")));
            deploy::follow(session, &released, deploy::Url::Hidden).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_anything() {
        let change = assignments(&["A=b=c".into(), "B=".into()]).unwrap();
        assert_eq!(change["A"].as_deref(), Some("b=c"));
        assert_eq!(change["B"].as_deref(), Some(""));
        assert!(assignments(&["A".into()]).is_err());
    }
}
