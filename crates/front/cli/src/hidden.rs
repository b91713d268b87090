//! Lines that are typed at the terminal and not shown, such as a password. The terminal is that of
//! whoever runs the command, also where stdin and stdout are other things.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;

use anyhow::{Context, bail, ensure};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::output;

const TERMINAL: &str = "/dev/tty";
/// The most bytes of a line; nobody types more.
pub const BYTES_MAX: usize = 4096;
/// The exit code of a command that Ctrl-C ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Asks for a line twice, so that what nobody sees is typed right. `what` is what it is to be;
/// `elsewhere` says how it is given where there is no terminal.
pub async fn ask_twice(what: &str, elsewhere: &str) -> anyhow::Result<Zeroizing<String>> {
    let lines = ask(what, vec![format!("{what}: "), "Again: ".into()], elsewhere).await?;
    ensure!(lines[0] == lines[1], "the two are not the same: nothing was done");
    lines.into_iter().next().context("nothing was typed")
}

/// Asks for a line.
pub async fn ask_once(what: &str, elsewhere: &str) -> anyhow::Result<Zeroizing<String>> {
    let lines = ask(what, vec![format!("{what}: ")], elsewhere).await?;
    lines.into_iter().next().context("nothing was typed")
}

async fn ask(
    what: &str,
    questions: Vec<String>,
    elsewhere: &str,
) -> anyhow::Result<Vec<Zeroizing<String>>> {
    let Ok(file) = File::options().read(true).write(true).open(TERMINAL) else {
        bail!("there is no terminal to ask for the {}: {elsewhere}", what.to_lowercase());
    };
    let what = what.to_lowercase();
    let silenced = Silenced::new(file.try_clone()?)?;
    let typed = tokio::task::spawn_blocking(move || {
        let mut reader = BufReader::new(&file);
        let answers = questions.iter().map(|question| {
            (&file).write_all(question.as_bytes())?;
            first_line(&mut reader, &what)
        });
        answers.collect()
    });
    tokio::select! {
        typed = typed => typed?,
        // Whoever reads goes on reading, so that nothing but the end of the process is left.
        _ = tokio::signal::ctrl_c() => {
            drop(silenced);
            output::say("");
            std::process::exit(INTERRUPTED)
        }
    }
}

/// Reads a line, without its end; `what` is what it is to be.
pub fn first_line(from: &mut impl BufRead, what: &str) -> anyhow::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::new());
    let read = from.take(BYTES_MAX as u64 + 1).read_line(&mut line);
    read.with_context(|| format!("the {what} cannot be read"))?;
    ensure!(line.len() <= BYTES_MAX, "its first line is longer than a {what}");
    let length = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(length);
    ensure!(!line.is_empty(), "it has no {what} in its first line");
    Ok(line)
}

/// A terminal that shows nothing of what is typed, and does so again when this goes.
struct Silenced {
    file: File,
    before: Termios,
}

impl Silenced {
    fn new(file: File) -> anyhow::Result<Silenced> {
        let before = tcgetattr(file.as_fd()).context("the terminal")?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&file, OptionalActions::Flush, &silent).context("the terminal")?;
        Ok(Silenced { file, before })
    }
}

impl Drop for Silenced {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        tcsetattr(&self.file, OptionalActions::Now, &self.before).ok();
    }
}
