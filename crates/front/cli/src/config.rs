//! `cortex config`, `config set`, `config unset`, `config get`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{App, Json, Session, deploy, dotenv, output};
use api_types::{ConfigChange, Configured};
use client::encode;

/// The limit of one input: four times what all variables of an application may take, so that it is
/// the node that says what is too much.
const INPUT_BYTES_MAX: u64 = 1024 * 1024;

const SET_HELP: &str = "\
A secret on a command line is seen by everybody on the machine and stays in the shell's history:
  cortex config set --file .env               what a file says
  pass show shop | cortex config set KEY=-    one value
  cortex config set CERT@server.pem           one value that is a file
  cortex config set - < .env                  lines, as --stdin

Lines are NAME=VALUE, with or without `export`; '#' begins a comment. Values may stand in quotes and
then go over several lines; in double quotes \\n is the end of one. Nothing is replaced in them.";

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
    #[command(after_help = SET_HELP)]
    Set {
        /// NAME=VALUE; NAME=- takes the value from stdin, NAME@FILE from a file; - alone reads
        /// lines
        #[arg(
            required_unless_present_any = ["files", "stdin"],
            value_name = "NAME=VALUE"
        )]
        variables: Vec<String>,
        /// Set what a file of NAME=VALUE lines says, such as .env; several times for several files
        #[arg(long = "file", short = 'f', value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Set what such lines on stdin say
        #[arg(long)]
        stdin: bool,
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
            Some(Action::Set { variables, files, stdin, app }) => {
                let change =
                    Given { variables, files, stdin }.read(&mut std::io::stdin().lock())?;
                apply(session, &app.or(outer), "Setting", change).await
            }
            Some(Action::Unset { names, app }) => {
                let change = names.into_iter().map(|name| (name, None)).collect();
                apply(session, &app.or(outer), "Unsetting", change).await
            }
        }
    }
}

/// The arguments of `set`; later ones win over earlier ones.
struct Given {
    variables: Vec<String>,
    files: Vec<PathBuf>,
    stdin: bool,
}

impl Given {
    fn read(self, stdin: &mut dyn Read) -> anyhow::Result<ConfigChange> {
        let mut input = Stdin { stdin, taken: false };
        let mut change = ConfigChange::new();
        for file in &self.files {
            let text = match file.to_str() {
                Some("-") => input.text()?,
                _ => text_of(file)?,
            };
            change.extend(lines(&text, &file.display().to_string())?);
        }
        if self.stdin {
            change.extend(lines(&input.text()?, "stdin")?);
        }
        for word in &self.variables {
            if word == "-" {
                change.extend(lines(&input.text()?, "stdin")?);
                continue;
            }
            let (name, value) = match (word.split_once('='), word.split_once('@')) {
                (Some((name, "-")), _) => (name, without_end(input.text()?)),
                // Names have no `@`, so one before `=` belongs to `NAME@FILE`.
                (Some((name, value)), _) if !name.contains('@') => (name, value.to_string()),
                (_, Some((name, file))) => (name, without_end(text_of(Path::new(file))?)),
                _ => anyhow::bail!(
                    "'{word}' sets nothing: write for example NAME=value, or `-` to read such lines \
                     from stdin"
                ),
            };
            change.insert(name.to_string(), Some(value));
        }
        Ok(change)
    }
}

struct Stdin<'a> {
    stdin: &'a mut dyn Read,
    taken: bool,
}

impl Stdin<'_> {
    fn text(&mut self) -> anyhow::Result<String> {
        anyhow::ensure!(!self.taken, "stdin can be read only once: name it once");
        self.taken = true;
        decoded(&mut self.stdin, "stdin")
    }
}

fn text_of(file: &Path) -> anyhow::Result<String> {
    let shown = file.display().to_string();
    let mut opened =
        std::fs::File::open(file).with_context(|| format!("{shown} cannot be read"))?;
    decoded(&mut opened, &shown)
}

fn decoded(from: &mut dyn Read, shown: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(INPUT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{shown} cannot be read"))?;
    anyhow::ensure!(
        bytes.len() as u64 <= INPUT_BYTES_MAX,
        "{shown} is larger than all variables may be: keep large values in files of the application"
    );
    let text = recipe_core::source::decoded(&bytes).with_context(|| {
        format!("{shown} is not UTF-8 text: save it as UTF-8, or encode the value, as in base64")
    })?;
    Ok(text.into_owned())
}

/// Removes the line end that most programs print after a value.
fn without_end(text: String) -> String {
    let end = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text));
    end.map_or_else(|| text.clone(), str::to_owned)
}

/// Reads the variables of a file. One that a project also uses elsewhere may set variables that
/// only the platform sets here, so these are left out.
fn lines(text: &str, shown: &str) -> anyhow::Result<ConfigChange> {
    let mut change = ConfigChange::new();
    for (name, value) in dotenv::parse(text).with_context(|| shown.to_owned())? {
        if recipe_core::manifest::is_platform_variable(&name) {
            output::say(&format!("{shown}: {name} was left out: the platform itself gives it"));
        } else {
            change.insert(name, Some(value));
        }
    }
    anyhow::ensure!(!change.is_empty(), "{shown} sets nothing: write NAME=value, one on each line");
    Ok(change)
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
            released.notes.iter().for_each(|note| output::remark(note));
            deploy::follow(session, &released, deploy::Url::Hidden).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_hold_anything() {
        let change = read(&["A=b=c", "B=", "C=a@b=c"], "").unwrap();
        assert_eq!(change["A"].as_deref(), Some("b=c"));
        assert_eq!(change["B"].as_deref(), Some(""));
        assert_eq!(change["C"].as_deref(), Some("a@b=c"));
        assert!(read(&["A"], "").is_err());
    }

    fn read(variables: &[&str], stdin: &str) -> anyhow::Result<ConfigChange> {
        let variables = variables.iter().map(|word| word.to_string()).collect();
        Given { variables, files: Vec::new(), stdin: false }.read(&mut stdin.as_bytes())
    }

    #[test]
    fn values_come_from_files_and_stdin() {
        let directory = tempfile::tempdir().unwrap();
        let (pem, env) = (directory.path().join("a=b.pem"), directory.path().join(".env"));
        std::fs::write(&pem, "line\nline\r\n").unwrap();
        // The file is as another system's editor saves it.
        let wide: Vec<u8> = "\u{feff}PORT=1\r\nA='x y'\r\nB=file\r\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        std::fs::write(&env, wide).unwrap();
        let change = Given {
            variables: vec![format!("PEM@{}", pem.display()), "B=word".into(), "KEY=-".into()],
            files: vec![env],
            stdin: false,
        };
        let change = change.read(&mut &b"secret\n"[..]).unwrap();
        let expected = [("A", "x y"), ("B", "word"), ("KEY", "secret"), ("PEM", "line\nline")];
        let expected = expected.map(|(name, value)| (name.to_owned(), Some(value.to_owned())));
        assert_eq!(change, ConfigChange::from(expected));
        let lines = read(&["-"], "# all\nexport A=1\nB=\"2\n3\"\n").unwrap();
        assert_eq!((lines["A"].as_deref(), lines["B"].as_deref()), (Some("1"), Some("2\n3")));
        for (variables, stdin, said) in [
            (&["-", "A=-"][..], "B=1", "once"),
            (&["-"], "# nothing", "stdin sets nothing"),
            (&["-"], "secret", "stdin: line 1 sets nothing"),
            (&["A@/no/such/file"], "", "/no/such/file cannot be read"),
        ] {
            let error = format!("{:#}", read(variables, stdin).unwrap_err());
            assert!(error.contains(said) && !error.contains("secret"), "{error}");
        }
    }
}
