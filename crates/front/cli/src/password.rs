//! `cortex password set|off`: what clients of an application are asked for before they see it.

use std::io::{IsTerminal, Read};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use super::{App, Json, Session, hidden, output};
use api_types::maintenance::{PasswordAsked, PasswordShown};
use client::encode;

/// Bytes that are read where a password is expected; the platform says which length is good.
const INPUT_MAX: u64 = 4096;
/// The letters and digits of a password that is made here, without those that look alike.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Five of them have 25 bits, four such groups 100, which nobody guesses.
const GROUP: usize = 5;
const GROUPS: usize = 4;

#[derive(Debug, Args)]
pub struct PasswordCommand {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Ask clients for a password, which is typed here or comes on stdin
    Set {
        /// Make one, and print it
        #[arg(long)]
        generate: bool,
        #[command(flatten)]
        app: App,
    },
    /// Let everybody in again
    Off {
        #[command(flatten)]
        app: App,
    },
}

impl PasswordCommand {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let (app, action) = match self.action {
            None => return show(session, &self.app, self.json).await,
            Some(Action::Set { generate, app }) => (app, Some(generate)),
            Some(Action::Off { app }) => (app, None),
        };
        let app = app.or(self.app);
        let name = app.name()?;
        let (password, generated) = match action {
            None => (None, None),
            Some(true) => {
                let made = generate()?;
                (Some(made.clone()), Some(made))
            }
            Some(false) => (Some(given().await?), None),
        };
        let is_set = password.is_some();
        let doing = if is_set { "Setting the password of" } else { "Opening" };
        output::begin(&format!("{doing} {name}"));
        let asked = PasswordAsked { password: password.map(Into::into) };
        let shown: PasswordShown = output::finish(session.client.post(&path(&name), &asked).await)?;
        output::say("done");
        if is_set {
            output::say(&format!(
                "All nodes ask clients for it, by whatever name. Let everybody in again with: cortex \
                 password off -a {name}"
            ));
        }
        match generated {
            _ if self.json.json => output::json(&shown),
            Some(made) => {
                output::say("It is shown this once:");
                output::print(&made)
            }
            None => Ok(()),
        }
    }
}

fn path(name: &model::ApplicationName) -> String {
    format!("/v1/apps/{}/password", encode(name.as_str()))
}

async fn show(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let shown: PasswordShown = session.client.get(&path(&app.name()?)).await?;
    if json.json {
        return output::json(&shown);
    }
    match &shown.since {
        Some(since) => output::print(&format!("on, since {}", output::time(since))),
        None => output::print("off"),
    }
}

fn generate() -> anyhow::Result<String> {
    let mut random = [0; GROUP * GROUPS];
    let flags = rustix::rand::GetRandomFlags::empty();
    let filled = rustix::rand::getrandom(&mut random, flags).context("no random bytes")?;
    ensure!(filled == random.len(), "the system gives no random bytes");
    let letter = |byte: &u8| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]);
    let groups: Vec<String> =
        random.chunks(GROUP).map(|group| group.iter().map(letter).collect()).collect();
    Ok(groups.join("-"))
}

/// Returns the password: typed twice without being shown, or the only line of what is no terminal.
async fn given() -> anyhow::Result<String> {
    let stdin = std::io::stdin();
    match stdin.is_terminal() {
        true => Ok(hidden::ask_twice("Password", "give it on stdin").await?.to_string()),
        false => line_of(stdin.lock()),
    }
}

fn line_of(from: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = from.take(INPUT_MAX).read_to_string(&mut text);
    read.context("the password on stdin cannot be read")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    ensure!(!line.is_empty(), "no password came on stdin");
    ensure!(!line.contains('\n'), "more than one line came on stdin");
    Ok(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_has_the_password_in_one_line() {
        for (text, expected) in [
            ("open sesame\n", Some("open sesame")),
            ("open sesame\r\n", Some("open sesame")),
            (" open ", Some(" open ")),
            ("", None),
            ("\n", None),
            ("one\ntwo\n", None),
        ] {
            assert_eq!(line_of(text.as_bytes()).ok().as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_made_can_be_typed_and_is_never_the_same() {
        let made = generate().unwrap();
        assert_eq!((made.len(), made.split('-').count()), (GROUP * GROUPS + GROUPS - 1, GROUPS));
        assert!(made.bytes().all(|byte| byte == b'-' || ALPHABET.contains(&byte)), "{made}");
        assert_ne!(made, generate().unwrap());
    }
}
