//! The Procfile, as Heroku, Dokku and piku know it: one `NAME: COMMAND` per line. Reads it and
//! nothing else; `detect` combines it with what a framework says.

use std::collections::BTreeMap;

use model::ProcessType;
use model::cron::CronRecipe;
use thiserror::Error;

use crate::manifest::cron;

pub const PROCFILE: &str = "Procfile";
/// Lines of a Procfile: real ones have fewer than ten, a longer file is none.
const LINES_MAX: usize = 1_000;
/// Names that mean something here, in small letters or capitals.
const MEANT: [&str; 2] = ["web", "release"];
const SHOWN_CHARS_MAX: usize = 80;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Procfile {
    pub processes: BTreeMap<ProcessType, String>,
    /// Heroku's release phase: once per release, before traffic switches.
    pub release: Option<String>,
    /// piku's preflight: once before the processes of a release, for us a build step.
    pub preflight: Option<String>,
    /// piku's directory to be served as it is.
    pub static_directory: Option<String>,
    /// piku's commands that run at times.
    pub cron: Vec<CronRecipe>,
    /// What was read in another way than it is written.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProcfileError {
    #[error(
        "Procfile line {line}: '{shown}' is not of the form 'NAME: COMMAND' (NAME is letters, \
         digits, hyphens and underscores); write for example 'web: python3 app.py', and '#' \
         before a comment"
    )]
    Form { line: usize, shown: String },
    #[error(
        "Procfile line {line}: '{name}' has no command; write what starts it after the colon, or \
         remove the line"
    )]
    Empty { line: usize, name: String },
    #[error(
        "Procfile lines {first} and {second} both define '{name}': rename or remove one of them"
    )]
    Duplicate { name: String, first: usize, second: usize },
    #[error("Procfile line {line}: '{name}': {why}; write for example '{name}: 0 4 * * * command'")]
    Schedule { line: usize, name: String, why: String },
    #[error("the Procfile has more than {LINES_MAX} lines: remove what is no process type")]
    TooLong,
    #[error(
        "the Procfile names no process type: write for example 'web: python3 app.py', or remove \
         the file"
    )]
    Nothing,
}

pub fn parse(text: &str) -> Result<Procfile, ProcfileError> {
    let mut procfile = Procfile::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let number = index + 1;
        if number > LINES_MAX {
            return Err(ProcfileError::TooLong);
        }
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let form = || ProcfileError::Form {
            line: number,
            shown: line.chars().take(SHOWN_CHARS_MAX).collect(),
        };
        let (name, command) = line.split_once(':').ok_or_else(form)?;
        let name = name.trim_end();
        let known = MEANT.iter().find(|known| name.eq_ignore_ascii_case(known));
        let process: ProcessType = known.unwrap_or(&name).parse().map_err(|_| form())?;
        if process.as_str() != name {
            procfile
                .notes
                .push(format!("{PROCFILE} line {number}: '{name}' was read as '{process}'"));
        }
        let command = command.trim();
        if command.is_empty() {
            return Err(ProcfileError::Empty { line: number, name: process.to_string() });
        }
        if let Some(first) = seen.insert(process.to_string(), number) {
            let name = process.to_string();
            return Err(ProcfileError::Duplicate { name, first, second: number });
        }
        procfile.take(process, command, number)?;
    }
    if seen.is_empty() { Err(ProcfileError::Nothing) } else { Ok(procfile) }
}

impl Procfile {
    fn take(
        &mut self,
        process: ProcessType,
        command: &str,
        line: usize,
    ) -> Result<(), ProcfileError> {
        let name = process.as_str();
        if name == "release" {
            self.release = Some(command.into());
        } else if name == "preflight" {
            self.preflight = Some(command.into());
        } else if name == "static" && !command.contains(char::is_whitespace) {
            self.static_directory = Some(command.into());
        } else if name.starts_with("cron")
            && command.starts_with(|c: char| "*0123456789@".contains(c))
        {
            let name = process.to_string();
            let entry = cron::of_procfile(&name, command)
                .map_err(|why| ProcfileError::Schedule { line, name, why })?;
            self.cron.push(entry);
        } else {
            self.processes.insert(process, command.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_processes() {
        let text = "\u{feff}# comment\n\nweb: bundle exec puma -p $PORT\r\nworker_2 :  a: b\nrelease: migrate\n\
                    preflight: make\nstatic: public\ncron1: 0 * * * * x";
        let procfile = parse(text).unwrap();
        let processes: Vec<(&str, &str)> = procfile
            .processes
            .iter()
            .map(|(name, command)| (name.as_str(), command.as_str()))
            .collect();
        assert_eq!(processes, [("web", "bundle exec puma -p $PORT"), ("worker_2", "a: b")]);
        assert_eq!(procfile.release.as_deref(), Some("migrate"));
        assert_eq!(procfile.preflight.as_deref(), Some("make"));
        assert_eq!(procfile.static_directory.as_deref(), Some("public"));
        let cron = &procfile.cron[0];
        let entry = (cron.name.as_str(), cron.schedule.as_str(), cron.command.as_str());
        assert_eq!(entry, ("cron1", "0 * * * *", "x"));
        assert!(procfile.notes.is_empty());
    }

    #[test]
    fn schedules_of_piku_s_are_read_and_other_names_left_alone() {
        let text =
            "cron_a: */5  8-17 * * mon-fri  python x.py 1 2\ncron-b: @daily run\ncronjob: run";
        let procfile = parse(text).unwrap();
        let entries: Vec<_> =
            procfile.cron.iter().map(|one| (&*one.schedule, &*one.command)).collect();
        assert_eq!(entries, [("*/5  8-17 * * mon-fri", "python x.py 1 2"), ("@daily", "run")]);
        assert_eq!(procfile.processes.len(), 1);
    }

    #[test]
    fn names_that_mean_something_may_be_written_large() {
        let procfile = parse("Web: run\nRELEASE: migrate\nWorker: w").unwrap();
        assert_eq!(procfile.processes[&ProcessType::web()], "run");
        assert_eq!(procfile.release.as_deref(), Some("migrate"));
        assert!(procfile.processes.keys().any(|one| one.as_str() == "Worker"));
        assert_eq!(procfile.notes[0], "Procfile line 1: 'Web' was read as 'web'");
        let error = parse("Web: a\nweb: b").unwrap_err().to_string();
        assert!(error.contains("both define 'web'"), "{error}");
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, expected) in [
            ("web: a\n\nweb: b", "Procfile lines 1 and 3 both define 'web'"),
            ("release: a\nrelease: b", "Procfile lines 1 and 2 both define 'release'"),
            ("nothing here", "Procfile line 1: 'nothing here' is not of the form"),
            ("my web: a", "Procfile line 1: 'my web: a' is not of the form"),
            ("web:", "Procfile line 1: 'web' has no command"),
            ("# only\n", "names no process type"),
            ("cron: 61 * * * * x", "Procfile line 1: 'cron': '61' is not a valid minute"),
            ("cron: 1 * * * *", "there is no command"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert_eq!(parse(&"#\n".repeat(LINES_MAX + 1)), Err(ProcfileError::TooLong));
    }
}
