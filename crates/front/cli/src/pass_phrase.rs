//! The pass-phrase of an exported cluster: from a file, the environment or the terminal, and never
//! from the command line, which everybody on the machine sees.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use backup::schedule::pass_phrase_fault;
use clap::Args;
use zeroize::Zeroizing;

use super::hidden::{self, first_line};

/// What the terminal is asked for.
const WHAT: &str = "Pass-phrase";
const HOW: &str = "say it with --passphrase-file FILE (- for stdin) or CORTEX_PASSPHRASE, or run \
                   this where there is a terminal";

#[derive(Clone, Debug, Args)]
pub struct PassPhraseArgs {
    /// A file with the pass-phrase in its first line; '-' for stdin
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// The pass-phrase, for what runs without a terminal
    #[arg(skip = PassPhrase::of_environment())]
    of_environment: Option<PassPhrase>,
}

/// A pass-phrase, which is wiped when it is dropped and shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct PassPhrase(Zeroizing<String>);

impl PassPhrase {
    fn of_environment() -> Option<PassPhrase> {
        std::env::var("CORTEX_PASSPHRASE").ok().map(|phrase| PassPhrase(Zeroizing::new(phrase)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PassPhrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PassPhrase(…)")
    }
}

impl PassPhraseArgs {
    pub fn is_stdin(&self) -> bool {
        self.passphrase_file.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Returns the pass-phrase for something new; on a terminal it is asked for twice.
    pub async fn choose(&self) -> anyhow::Result<PassPhrase> {
        let phrase = match self.said()? {
            Some(phrase) => phrase,
            None => PassPhrase(hidden::ask_twice(WHAT, HOW).await?),
        };
        match pass_phrase_fault(phrase.as_str()) {
            Some(fault) => bail!(fault),
            None => Ok(phrase),
        }
    }

    /// Returns the pass-phrase of something that there is.
    pub async fn recall(&self) -> anyhow::Result<PassPhrase> {
        match self.said()? {
            Some(phrase) => Ok(phrase),
            None => Ok(PassPhrase(hidden::ask_once(WHAT, HOW).await?)),
        }
    }

    fn said(&self) -> anyhow::Result<Option<PassPhrase>> {
        match (&self.passphrase_file, &self.of_environment) {
            (Some(_), _) if self.is_stdin() => {
                ensure!(!std::io::stdin().is_terminal(), "a terminal is stdin: {HOW}");
                let line = first_line(&mut std::io::stdin().lock(), "pass-phrase");
                Ok(Some(PassPhrase(line.context("stdin")?)))
            }
            (Some(path), _) => of_file(path).map(Some),
            (None, of_environment) => Ok(of_environment.clone()),
        }
    }
}

fn of_file(path: &Path) -> anyhow::Result<PassPhrase> {
    let shown = || path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(shown)?);
    first_line(&mut file, "pass-phrase").map(PassPhrase).with_context(shown)
}

#[cfg(test)]
mod tests {
    use super::super::hidden::BYTES_MAX;
    use super::*;

    fn named(path: &Path) -> PassPhraseArgs {
        PassPhraseArgs { passphrase_file: Some(path.into()), of_environment: None }
    }

    #[tokio::test]
    async fn the_first_line_of_a_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("phrase");
        let check = async |content: &str, expected: Result<&str, &str>| {
            std::fs::write(&path, content).unwrap();
            let chosen = named(&path).choose().await.map(|phrase| phrase.as_str().to_string());
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => assert_eq!(chosen, expected),
                (Err(error), Err(expected)) => {
                    let said = format!("{error:#}");
                    assert!(said.contains(expected), "{said}");
                }
                (chosen, _) => panic!("{content:?}: {chosen:?}"),
            }
        };
        check("correct horse battery\nstaple\n", Ok("correct horse battery")).await;
        check(" spaces are part of it \r\n", Ok(" spaces are part of it ")).await;
        check("short\n", Err("12 are the least")).await;
        check("\n", Err("no pass-phrase")).await;
        check("", Err("no pass-phrase")).await;
        check(&"x".repeat(BYTES_MAX + 1), Err("longer than")).await;
        std::fs::write(&path, "short\n").unwrap();
        assert_eq!(named(&path).recall().await.unwrap().as_str(), "short");
        let error = named(Path::new("/nowhere/phrase")).recall().await.unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/phrase"));
    }
}
