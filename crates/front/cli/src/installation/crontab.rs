//! An `@reboot` line of the user's crontab, for machines whose users have no systemd. The line ends
//! in a mark, by which it is replaced and removed; all other lines stay as they are.

use anyhow::{Context, ensure};

use super::{StartCommand, is_plain, tool};

/// The longest command in bytes; cron refuses those beyond 1000.
const COMMAND_BYTES_MAX: usize = 998;
/// The `PATH` that cron gives to commands by itself.
const PATH_DEFAULT: &str = "/usr/bin:/bin";

pub fn line(start: &StartCommand) -> anyhow::Result<String> {
    let StartCommand { search_path, program, arguments, .. } = start;
    let words: Vec<String> =
        [program].into_iter().chain(arguments).map(|word| quoted(word)).collect();
    let path = match search_path.as_str() {
        PATH_DEFAULT | "" => String::new(),
        path => format!("PATH={} ", quoted(path)),
    };
    // The node writes its own log; cron would try to mail what it prints.
    let command = format!("{path}{} >/dev/null 2>&1 {}", words.join(" "), mark(&start.mark));
    ensure!(
        is_plain(&command),
        "an option, PATH or the data directory's name contains a line break or the like: no \
         crontab can hold that"
    );
    // For cron, a plain % ends the command.
    let command = command.replace('%', "\\%");
    ensure!(
        command.len() <= COMMAND_BYTES_MAX,
        "the crontab line would be longer than the {COMMAND_BYTES_MAX} bytes that cron takes: \
         start the node, or `cortex install`, with a shorter PATH"
    );
    Ok(format!("@reboot {command}"))
}

fn mark(mark: &str) -> String {
    format!("# cortex-node {mark}: `cortex install --uninstall` removes this line")
}

/// Quotes a word for `sh`.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

pub fn install(start: &StartCommand) -> anyhow::Result<()> {
    let before = read()?.context("there is no crontab")?;
    write(&with(&before, &start.mark, Some(&line(start)?)))
}

/// Removes the line; returns whether there was one.
pub fn uninstall(of: &str) -> anyhow::Result<bool> {
    let Some(before) = read()? else { return Ok(false) };
    let after = with(&before, of, None);
    if after == before {
        return Ok(false);
    }
    write(&after)?;
    Ok(true)
}

pub fn is_usable() -> anyhow::Result<bool> {
    Ok(read()?.is_some())
}

/// Reads the crontab: `None` if there is no `crontab` program, empty if this user has no crontab
/// yet.
fn read() -> anyhow::Result<Option<String>> {
    let Some(said) = tool("crontab", &["-l"], None)? else { return Ok(None) };
    if !said.success && said.stderr.contains("no crontab") {
        return Ok(Some(String::new()));
    }
    Ok(Some(said.succeeded()?.stdout))
}

fn write(text: &str) -> anyhow::Result<()> {
    let said = tool("crontab", &["-"], Some(text))?.context("there is no crontab")?;
    said.succeeded().map(drop)
}

/// Returns the crontab without the line of that mark, and with the new line if there is one.
fn with(crontab: &str, of: &str, line: Option<&str>) -> String {
    let marked = mark(of);
    let mut text: String =
        crontab.split_inclusive('\n').filter(|line| !line.trim_end().ends_with(&marked)).collect();
    if let Some(line) = line {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> StartCommand {
        StartCommand {
            search_path: "/opt/it's/bin:/bin".into(),
            program: "/data/bin/cortex".into(),
            arguments: vec!["up".into(), "--data-dir".into(), "/100% mine".into()],
            mark: "0123".into(),
            data: "/100% mine".into(),
        }
    }

    #[test]
    fn a_line_is_quoted_for_sh_and_cron() {
        let line = line(&start()).unwrap();
        let expected = "@reboot PATH='/opt/it'\\''s/bin:/bin' /data/bin/cortex up --data-dir \
                        '/100\\% mine' >/dev/null 2>&1 # cortex-node 0123: ";
        assert!(line.starts_with(expected), "{line}");
        let plain = StartCommand { search_path: PATH_DEFAULT.into(), ..start() };
        assert!(super::line(&plain).unwrap().starts_with("@reboot /data/bin/cortex up "));
        let long = StartCommand { search_path: "/a".repeat(600), ..start() };
        assert!(super::line(&long).unwrap_err().to_string().contains("shorter PATH"));
        let broken = StartCommand { data: "x".into(), arguments: vec!["a\nb".into()], ..start() };
        assert!(super::line(&broken).unwrap_err().to_string().contains("line break"));
    }

    #[test]
    fn other_lines_stay_and_ours_is_there_once() {
        let mine = line(&start()).unwrap();
        let other = "MAILTO=a\n@reboot b # cortex-node 9999: other";
        let once = with(other, "0123", Some(&mine));
        assert_eq!(once, format!("{other}\n{mine}\n"));
        assert_eq!(with(&once, "0123", Some(&mine)), once);
        assert_eq!(with(&once, "0123", None), format!("{other}\n"));
        assert_eq!(with("", "0123", None), "");
    }
}
