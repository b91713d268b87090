//! The pass-phrase of an exported cluster: from a file, the environment or the terminal, and never
//! from the command line, which everybody on the machine sees.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use backup::schedule::pass_phrase_fault;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The most bytes of a pass-phrase; a file with more is another one.
const BYTES_MAX: usize = 4096;
const TERMINAL: &str = "/dev/tty";
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
    pub fn choose(&self) -> anyhow::Result<PassPhrase> {
        let phrase = match self.said()? {
            Some(phrase) => phrase,
            None => {
                let terminal = Terminal::open()?;
                let phrase = terminal.ask("Pass-phrase: ")?;
                ensure!(terminal.ask("Again: ")? == phrase, "the two are not the same");
                phrase
            }
        };
        match pass_phrase_fault(phrase.as_str()) {
            Some(fault) => bail!(fault),
            None => Ok(phrase),
        }
    }

    /// Returns the pass-phrase of something that there is.
    pub fn recall(&self) -> anyhow::Result<PassPhrase> {
        match self.said()? {
            Some(phrase) => Ok(phrase),
            None => Terminal::open()?.ask("Pass-phrase: "),
        }
    }

    fn said(&self) -> anyhow::Result<Option<PassPhrase>> {
        match (&self.passphrase_file, &self.of_environment) {
            (Some(_), _) if self.is_stdin() => {
                ensure!(!std::io::stdin().is_terminal(), "a terminal is stdin: {HOW}");
                first_line(std::io::stdin().lock()).context("stdin").map(Some)
            }
            (Some(path), _) => of_file(path).map(Some),
            (None, of_environment) => Ok(of_environment.clone()),
        }
    }
}

fn of_file(path: &Path) -> anyhow::Result<PassPhrase> {
    let shown = || path.display().to_string();
    first_line(File::open(path).with_context(shown)?).with_context(shown)
}

fn first_line(from: impl Read) -> anyhow::Result<PassPhrase> {
    let mut line = Zeroizing::new(String::new());
    let mut reader = BufReader::new(from.take(BYTES_MAX as u64 + 1));
    reader.read_line(&mut line).context("the pass-phrase cannot be read")?;
    ensure!(line.len() <= BYTES_MAX, "its first line is longer than a pass-phrase");
    let length = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(length);
    ensure!(!line.is_empty(), "it has no pass-phrase in its first line");
    Ok(PassPhrase(line))
}

/// The terminal of whoever runs the command, also where stdin and stdout are other things. It shows
/// nothing of what is typed, and does so again afterwards.
struct Terminal {
    file: File,
    before: Termios,
}

impl Terminal {
    fn open() -> anyhow::Result<Terminal> {
        let mut options = File::options();
        let Ok(file) = options.read(true).write(true).open(TERMINAL) else {
            bail!("there is no terminal to ask for the pass-phrase: {HOW}");
        };
        let before = tcgetattr(&file).context("the terminal")?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&file, OptionalActions::Flush, &silent).context("the terminal")?;
        Ok(Terminal { file, before })
    }

    fn ask(&self, question: &str) -> anyhow::Result<PassPhrase> {
        (&self.file).write_all(question.as_bytes())?;
        first_line(&self.file)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        tcsetattr(&self.file, OptionalActions::Drain, &self.before).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &Path) -> PassPhraseArgs {
        PassPhraseArgs { passphrase_file: Some(path.into()), of_environment: None }
    }

    #[test]
    fn the_first_line_of_a_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("phrase");
        let check = |content: &str, expected: Result<&str, &str>| {
            std::fs::write(&path, content).unwrap();
            let chosen = named(&path).choose().map(|phrase| phrase.as_str().to_string());
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => assert_eq!(chosen, expected),
                (Err(error), Err(expected)) => {
                    let said = format!("{error:#}");
                    assert!(said.contains(expected), "{said}");
                }
                (chosen, _) => panic!("{content:?}: {chosen:?}"),
            }
        };
        check("correct horse battery\nstaple\n", Ok("correct horse battery"));
        check(" spaces are part of it \r\n", Ok(" spaces are part of it "));
        check("short\n", Err("12 are the least"));
        check("\n", Err("no pass-phrase"));
        check("", Err("no pass-phrase"));
        check(&"x".repeat(BYTES_MAX + 1), Err("longer than"));
        std::fs::write(&path, "short\n").unwrap();
        assert_eq!(named(&path).recall().unwrap().as_str(), "short");
        let error = named(Path::new("/nowhere/phrase")).recall().unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/phrase"));
    }
}
