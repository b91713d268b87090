//! `git-remote-cortex`, the second name by which Git calls this binary for URLs that begin with
//! `cortex:` (gitremote-helpers(7)). A push of a branch becomes a push of its commit; nodes have no
//! repositories. Git itself refuses what is no descendant of the commit that serves.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use model::ApplicationName;

use crate::application::is_not_there;
use crate::deploy::ReleaseFailed;
use crate::{Exit, Global, Session, output, push};
use api_types::ReleaseRow;
use client::{ClientError, encode};

pub const HELPER: &str = "git-remote-cortex";
const SCHEME: &str = "cortex";
/// The branches that are deployed, whichever of them a repository has.
const BRANCHES: [&str; 2] = ["refs/heads/main", "refs/heads/master"];

/// `cortex://CONTEXT/APPLICATION`; without a context, the platform in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    pub context: Option<String>,
    pub application: ApplicationName,
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}/{}", self.context.as_deref().unwrap_or(""), self.application)
    }
}

impl FromStr for RemoteUrl {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<RemoteUrl> {
        let wrong = || format!("'{text}' is not {SCHEME}://CONTEXT/APPLICATION");
        // Git leaves the scheme out of `cortex::URL`.
        let rest = text.strip_prefix(&format!("{SCHEME}://")).unwrap_or(text);
        let (context, application) = rest.rsplit_once('/').unwrap_or(("", rest));
        let application = application.parse().with_context(wrong)?;
        let context = (!context.is_empty()).then(|| context.to_string());
        Ok(RemoteUrl { context, application })
    }
}

/// What Git asks of a helper, one line each.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Capabilities,
    List,
    DryRun(bool),
    OtherOption,
    Push(PushedRef),
    /// The end of a batch, or of the session if there is none.
    Blank,
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PushedRef {
    /// What is pushed; empty to delete the branch.
    from: String,
    to: String,
}

impl Asked {
    fn of(line: &str) -> Asked {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest) {
            ("", _) => Asked::Blank,
            ("capabilities", _) => Asked::Capabilities,
            ("list", _) => Asked::List,
            ("option", "dry-run true") => Asked::DryRun(true),
            ("option", "dry-run false") => Asked::DryRun(false),
            ("option", _) => Asked::OtherOption,
            ("push", refs) => {
                let (from, to) = refs.split_once(':').unwrap_or((refs, ""));
                let from = from.strip_prefix('+').unwrap_or(from);
                Asked::Push(PushedRef { from: from.into(), to: to.into() })
            }
            _ => Asked::Unknown(line.into()),
        }
    }
}

#[derive(Debug, Parser)]
#[command(name = HELPER, disable_help_subcommand = true)]
struct GitRemote {
    /// The name of the remote
    remote: String,
    /// Its URL
    address: String,
    #[command(flatten)]
    global: Global,
}

/// Returns whether the binary was called by this name.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|path| Path::new(path).file_name() == Some(OsStr::new(HELPER)))
}

pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let helper = match GitRemote::try_parse_from(arguments) {
        Ok(helper) => helper,
        Err(error) => {
            error.print().ok();
            return ExitCode::from(2);
        }
    };
    match helper.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::report(&error),
    }
}

impl GitRemote {
    fn run(mut self) -> anyhow::Result<()> {
        let url: RemoteUrl = self.address.parse()?;
        // The remote says which platform it is of, whatever is in use now.
        if url.context.is_some() {
            self.global.context.clone_from(&url.context);
            self.global.data_dir = None;
        }
        let layout = self.global.layout()?;
        let session = self.global.session(layout, false)?;
        output::speak_through_git();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(converse(&session, &url.application));
        runtime.shutdown_background();
        ended
    }
}

/// Answers Git until it has no more questions.
async fn converse(session: &Session, application: &ApplicationName) -> anyhow::Result<()> {
    let (mut batch, mut dry_run) = (Vec::new(), false);
    // Git speaks and waits in turn, so reading may block.
    for line in std::io::stdin().lock().lines() {
        match Asked::of(line.context("Git")?.trim_end()) {
            Asked::Capabilities => answer("push\noption\n\n")?,
            Asked::List => {
                answer(&format!("{}\n", listing(session, application).await?))?;
            }
            Asked::DryRun(value) => {
                dry_run = value;
                answer("ok\n")?;
            }
            Asked::OtherOption => answer("unsupported\n")?,
            Asked::Push(pushed) => batch.push(pushed),
            Asked::Blank if batch.is_empty() => break,
            Asked::Blank => {
                for pushed in batch.drain(..) {
                    answer(&outcome(session, application, &pushed, dry_run).await)?;
                }
                answer("\n")?;
            }
            Asked::Unknown(line) => bail!("this version does not know what Git asks: {line}"),
        }
    }
    Ok(())
}

fn answer(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("Git")
}

/// Returns the branches with the commit that serves, or that is on its way; none if what serves was
/// pushed otherwise.
async fn listing(session: &Session, application: &ApplicationName) -> anyhow::Result<String> {
    let path = format!("/v1/apps/{}/releases", encode(application.as_str()));
    let rows: Vec<ReleaseRow> = match session.client.get(&path).await {
        Ok(rows) => rows,
        Err(error) if is_not_there(&error) => return Ok(String::new()),
        Err(error) => return Err(error),
    };
    let is_wanted = |row: &&ReleaseRow| row.state == "serving";
    let serving = rows.iter().find(is_wanted).and_then(|row| row.revision.as_deref());
    let Some(commit) = serving.filter(|commit| is_commit(commit)) else {
        return Ok(String::new());
    };
    Ok(BRANCHES.iter().map(|branch| format!("{commit} {branch}\n")).collect())
}

/// Returns whether this is the whole id of a commit of Git, and not a revision of another system.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Pushes one branch; returns the line that tells Git what became of it.
async fn outcome(
    session: &Session,
    application: &ApplicationName,
    pushed: &PushedRef,
    dry_run: bool,
) -> String {
    let done = async {
        check(pushed)?;
        if !dry_run {
            push::push_commit(session, Path::new("."), &pushed.from, application).await?;
        }
        anyhow::Ok(())
    };
    match done.await {
        Ok(()) => format!("ok {}\n", pushed.to),
        Err(error) => format!("error {} {}\n", pushed.to, reason(&error)),
    }
}

fn check(pushed: &PushedRef) -> anyhow::Result<()> {
    let main = BRANCHES[0].trim_start_matches("refs/heads/");
    ensure!(!pushed.from.is_empty(), "a branch that is deployed is not deleted");
    ensure!(
        BRANCHES.contains(&pushed.to.as_str()),
        "only the branch {main} is deployed: git push cortex HEAD:{main}"
    );
    Ok(())
}

/// Returns why a push failed in one line, as Git shows it in brackets.
fn reason(error: &anyhow::Error) -> String {
    if error.is::<Exit>() {
        return "it was interrupted".into();
    }
    let said = match error.downcast_ref::<ReleaseFailed>() {
        Some(failed) => failed.to_string(),
        None => format!("{error:#}"),
    };
    let hint = error.downcast_ref::<ClientError>().and_then(ClientError::hint);
    let said = match hint {
        Some(hint) => format!("{said}; {hint}"),
        None => said,
    };
    output::plain(&said).lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_name_a_platform_and_an_application() {
        let url: RemoteUrl = "cortex://shop.example.org/blog".parse().unwrap();
        assert_eq!(url.context.as_deref(), Some("shop.example.org"));
        assert_eq!(url.to_string(), "cortex://shop.example.org/blog");
        for local in ["cortex:///blog", "blog", "/blog"] {
            let url: RemoteUrl = local.parse().unwrap();
            assert_eq!(url.to_string(), "cortex:///blog");
        }
        assert!("cortex://a/Bad Name".parse::<RemoteUrl>().is_err());
        assert!("cortex://a/".parse::<RemoteUrl>().is_err());
        assert!(is_called(Some(&"/usr/bin/git-remote-cortex".into())));
        assert!(!is_called(Some(&"git".into())));
    }

    #[test]
    fn its_arguments_are_well_formed() {
        use clap::CommandFactory;
        GitRemote::command().debug_assert();
    }

    #[test]
    fn what_git_asks_is_understood() {
        let pushed =
            |from: &str, to: &str| Asked::Push(PushedRef { from: from.into(), to: to.into() });
        for (line, asked) in [
            ("capabilities", Asked::Capabilities),
            ("list for-push", Asked::List),
            ("option dry-run true", Asked::DryRun(true)),
            ("option verbosity 1", Asked::OtherOption),
            ("push refs/heads/a:refs/heads/main", pushed("refs/heads/a", "refs/heads/main")),
            ("push +HEAD:refs/heads/main", pushed("HEAD", "refs/heads/main")),
            ("push :refs/heads/main", pushed("", "refs/heads/main")),
            ("", Asked::Blank),
            ("fetch x", Asked::Unknown("fetch x".into())),
        ] {
            assert_eq!(Asked::of(line), asked, "{line}");
        }
    }

    #[test]
    fn branches_that_are_not_deployed_are_refused() {
        let check = |from: &str, to: &str| {
            check(&PushedRef { from: from.into(), to: to.into() }).map_err(|e| e.to_string())
        };
        assert!(check("a", "refs/heads/main").is_ok() && check("a", "refs/heads/master").is_ok());
        assert!(check("a", "refs/heads/topic").unwrap_err().contains("HEAD:main"));
        assert!(check("a", "refs/tags/v1").is_err());
        assert!(check("", "refs/heads/main").unwrap_err().contains("not deleted"));
        assert!(is_commit(&"a1".repeat(20)) && !is_commit("17") && !is_commit(&"x".repeat(40)));
    }

    #[test]
    fn a_reason_is_one_line() {
        let failed = ReleaseFailed { release: "v12".into(), why: "exit status 1".into() };
        assert_eq!(reason(&failed.into()), "release v12 failed: exit status 1");
        assert_eq!(reason(&anyhow::anyhow!("a\nb\u{1b}[31mc")), "a bc");
    }
}
