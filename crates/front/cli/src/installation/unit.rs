//! A unit of the user's own systemd. It starts when the user's manager does: at boot if lingering
//! is on, else when the user logs in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{StartCommand, is_plain, tool};

/// No limit of starts: a node that came by an upgrade goes on when its attendant is killed, and no
/// other node can begin until it ends.
const UNIT: &str = "StartLimitIntervalSec=0\n";
/// The service's settings. `Restart` brings a node back that died; one that `cortex down` stopped
/// ends with success. `KillMode=process`: shims and instances outlive the node, which adopts them.
const REST: &str = "Restart=on-failure\nRestartSec=1\nKillMode=process\nTimeoutStopSec=90\n";

pub fn text(start: &StartCommand) -> anyhow::Result<String> {
    let words: Vec<&str> = [start.program.as_str()]
        .into_iter()
        .chain(start.arguments.iter().map(String::as_str))
        .collect();
    let rest = [start.search_path.as_str(), start.data.as_str()];
    ensure!(
        words.iter().copied().chain(rest).all(is_plain),
        "an option, PATH or the data directory's name contains a line break or the like: no unit \
         can hold that"
    );
    // systemd replaces a `$` in the command, and nowhere else.
    let command: Vec<String> = words.iter().map(|word| quoted(word).replace('$', "$$")).collect();
    Ok(format!(
        "# Written by `cortex install`; `cortex install --uninstall` removes it.\n\
         [Unit]\nDescription=Cortex node in {}\n{UNIT}\n\
         [Service]\nType=simple\nEnvironment={}\nExecStart={}\n{REST}\n\
         [Install]\nWantedBy=default.target\n",
        start.data.replace('%', "%%"),
        quoted(&format!("PATH={}", start.search_path)),
        command.join(" "),
    ))
}

/// Quotes a word for systemd: within double quotes, with its specifiers made harmless.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{escaped}\"")
}

pub fn name(mark: &str) -> String {
    format!("cortex-{mark}.service")
}

/// Returns whether this user has a manager that answers.
pub fn is_usable() -> anyhow::Result<bool> {
    let said = tool("systemctl", &["--user", "show-environment"], None)?;
    Ok(said.is_some_and(|said| said.success))
}

/// Returns the unit's path; `configuration` is the user's directory, such as `~/.config`.
pub fn path(configuration: &Path, mark: &str) -> PathBuf {
    configuration.join("systemd/user").join(name(mark))
}

pub fn install(configuration: &Path, start: &StartCommand) -> anyhow::Result<()> {
    let path = path(configuration, &start.mark);
    let written = fs::create_dir_all(path.parent().context("it has a directory")?)
        .and_then(|()| fs::write(&path, text(start).map_err(std::io::Error::other)?));
    written.with_context(|| format!("{} cannot be written", path.display()))?;
    manage(&["daemon-reload"])?;
    manage(&["enable", &name(&start.mark)])
}

/// Removes the unit; returns whether there was one.
pub fn uninstall(configuration: &Path, mark: &str) -> anyhow::Result<bool> {
    let path = path(configuration, mark);
    if !path.exists() {
        return Ok(false);
    }
    manage(&["disable", &name(mark)])?;
    fs::remove_file(&path).with_context(|| format!("{} cannot be removed", path.display()))?;
    manage(&["daemon-reload"])?;
    Ok(true)
}

fn manage(arguments: &[&str]) -> anyhow::Result<()> {
    let all: Vec<&str> = ["--user"].iter().chain(arguments).copied().collect();
    let said = tool("systemctl", &all, None)?.context("there is no systemctl")?;
    said.succeeded().map(drop)
}

/// Returns whether the user's units run although nobody is logged in.
pub fn lingers(user: &str) -> bool {
    Path::new("/var/lib/systemd/linger").join(user).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: &str) {
        assert_eq!(quoted(word), expected);
    }

    #[test]
    fn words_reach_the_program_as_they_are() {
        check("/a b", "\"/a b\"");
        check("5%\"\\", "\"5%%\\\"\\\\\"");
    }

    #[test]
    fn a_unit_names_all_that_is_started() {
        let start = StartCommand {
            search_path: "/bin:/home/a b".into(),
            program: "/data/bin/cortex".into(),
            arguments: vec!["up".into(), "--data-dir".into(), "/da$ta".into()],
            mark: "0123".into(),
            data: "/da$ta".into(),
        };
        let text = text(&start).unwrap();
        assert!(text.contains("Environment=\"PATH=/bin:/home/a b\"\n"), "{text}");
        let command = "ExecStart=\"/data/bin/cortex\" \"up\" \"--data-dir\" \"/da$$ta\"\n";
        assert!(text.contains(command), "{text}");
        assert!(text.contains("WantedBy=default.target\n"), "{text}");
        let (unit, service) = text.split_once("[Service]").unwrap();
        assert!(unit.contains(UNIT) && service.contains(REST), "{text}");
        let broken = StartCommand { data: "a\nb".into(), ..start };
        assert!(super::text(&broken).unwrap_err().to_string().contains("line break"));
    }
}
