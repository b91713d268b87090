//! `cortex install`: makes the machine start this node by itself from now on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;

use super::up::Up;
use super::{Json, Session, output};
use crate::installation;
use crate::installation::{StartCommand, crontab, unit};
use node::started::Started;
use os::binaries::{self, BinaryRole};
use os::directory;

/// The two names under which the binary is linked.
const NAMES: [&str; 2] = ["cortex", "vera"];

#[derive(Debug, Args)]
pub struct Install {
    /// What starts the node [default: systemd where this user has one, else crontab]
    #[arg(long, value_enum, value_name = "HOW")]
    with: Option<How>,
    /// Also link `cortex` and `vera` in this directory, for example ~/.local/bin
    #[arg(long, value_name = "DIR")]
    links: Option<PathBuf>,
    /// Only show what would be written
    #[arg(long, conflicts_with = "uninstall")]
    print: bool,
    /// Take back what an earlier `cortex install` wrote; with --links, its links too
    #[arg(long)]
    uninstall: bool,
    #[command(flatten)]
    json: Json,
    /// Options of `cortex up`, after `--` [default: those that the node was started with last]
    #[arg(last = true, value_name = "UP-OPTIONS")]
    options: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum How {
    /// A unit of the user's own systemd
    Systemd,
    /// An `@reboot` line of the user's crontab
    Crontab,
}

/// The options of `cortex up`, which are only read here.
#[derive(Debug, Parser)]
#[command(name = "cortex up")]
struct Asked {
    #[command(flatten)]
    up: Up,
}

#[derive(Serialize)]
struct Shown {
    how: How,
    /// The unit's file; `None` for the crontab.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    text: String,
    binary: PathBuf,
    links: Vec<PathBuf>,
    written: bool,
    /// Whether the user's units run without a login; `None` for the crontab, which needs no
    /// lingering.
    #[serde(skip_serializing_if = "Option::is_none")]
    lingers: Option<bool>,
}

#[derive(Serialize)]
struct Taken {
    systemd: bool,
    crontab: bool,
    links: Vec<PathBuf>,
}

impl Install {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        if self.uninstall {
            return self.take_back(session);
        }
        let how = match self.with {
            Some(how) => how,
            None => self.choose()?,
        };
        let start = self.start(session, how)?;
        let text = match how {
            How::Systemd => unit::text(&start)?,
            How::Crontab => crontab::line(&start)?,
        };
        let path = match how {
            How::Systemd => Some(unit::path(&configuration(session)?, &start.mark)),
            How::Crontab => None,
        };
        let binary = PathBuf::from(&start.program);
        let links = match &self.links {
            Some(directory) => links_in(directory, &binary)?,
            None => Vec::new(),
        };
        if !self.print {
            put_binary(session)?;
            match how {
                How::Systemd => unit::install(&configuration(session)?, &start)?,
                How::Crontab => crontab::install(&start)?,
            }
            make_links(&links, &binary)?;
        }
        let user = api::user_name(rustix::process::getuid().as_raw());
        let lingers = (how == How::Systemd).then(|| unit::lingers(&user));
        let written = !self.print;
        let shown = Shown { how, path, text, binary, links, written, lingers };
        if self.json.json {
            return output::json(&shown);
        }
        if self.print {
            return output::print(shown.text.trim_end());
        }
        tell(&shown, &start, &user);
        Ok(())
    }

    fn choose(&self) -> anyhow::Result<How> {
        if unit::is_usable()? {
            return Ok(How::Systemd);
        }
        // To print the text, no tool has to be there.
        if self.print || crontab::is_usable()? {
            return Ok(How::Crontab);
        }
        bail!(
            "this machine has neither a systemd for users nor crontab: let whatever starts things \
             here run what `cortex install --print --with crontab` shows after @reboot"
        )
    }

    fn start(&self, session: &Session, how: How) -> anyhow::Result<StartCommand> {
        let layout = &session.layout;
        let path = std::env::var("PATH").unwrap_or_default();
        let started = match self.options.is_empty() {
            true => Started::load(layout)?.unwrap_or_else(|| Started::new(Vec::new(), path)),
            false => Started::new(self.asked()?, path),
        };
        let text = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.with_context(|| {
                format!("{} is no text: choose another --data-dir", path.display())
            })
        };
        let data = text(layout.root())?;
        let mut arguments = vec!["up".to_owned()];
        arguments.extend((how == How::Crontab).then(|| "--detach".to_owned()));
        arguments.extend(["--data-dir".to_owned(), data.clone()]);
        arguments.extend(started.arguments);
        Ok(StartCommand {
            search_path: started.search_path,
            program: text(&layout.bin().join(BinaryRole::Current.name()))?,
            arguments,
            mark: installation::mark(layout),
            data,
        })
    }

    fn asked(&self) -> anyhow::Result<Vec<String>> {
        let words = [OsString::from("cortex up")].into_iter().chain(self.options.clone());
        let asked = Asked::try_parse_from(words).map_err(|error| {
            anyhow::anyhow!("these options of `cortex up` are not understood: {error}")
        })?;
        asked.up.check_lasting()?;
        asked.up.arguments()
    }

    fn take_back(&self, session: &Session) -> anyhow::Result<()> {
        let mark = installation::mark(&session.layout);
        let systemd = match session.home.is_some() || session.configuration.is_some() {
            true => unit::uninstall(&configuration(session)?, &mark)?,
            false => false,
        };
        let crontab = crontab::uninstall(&mark)?;
        let links = match &self.links {
            Some(directory) => remove_links(directory, &current(session))?,
            None => Vec::new(),
        };
        if self.json.json {
            return output::json(&Taken { systemd, crontab, links });
        }
        match (systemd, crontab) {
            (false, false) => output::say("Nothing was installed for this data directory."),
            (true, _) => output::say("The unit is removed; a node that runs goes on."),
            (false, true) => output::say("The crontab line is removed; a node that runs goes on."),
        }
        links.iter().for_each(|link| output::say(&format!("Removed {}", link.display())));
        Ok(())
    }
}

fn current(session: &Session) -> PathBuf {
    session.layout.bin().join(BinaryRole::Current.name())
}

fn configuration(session: &Session) -> anyhow::Result<PathBuf> {
    let named = session.configuration.clone().filter(|path| path.is_absolute());
    let home = || session.home.as_ref().map(|home| home.join(".config"));
    named.or_else(home).context("it is not known where your home directory is: set HOME")
}

/// Puts this binary where the node is started from; an upgrade may replace it there later.
fn put_binary(session: &Session) -> anyhow::Result<()> {
    let directory = session.layout.bin();
    for path in directory::data_directory(&session.layout)? {
        output::say(&format!("{} was open to others and is so no longer", path.display()));
    }
    let copy = binaries::install_own(&directory)?;
    binaries::name(&directory, BinaryRole::Current, &copy.path)
}

/// Returns the links to make; refuses names that something else has taken.
fn links_in(directory: &Path, binary: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let directory = std::path::absolute(directory)?;
    let links: Vec<PathBuf> = NAMES.iter().map(|name| directory.join(name)).collect();
    for link in &links {
        let free = std::fs::symlink_metadata(link).is_err();
        ensure!(
            free || is_ours(link, binary),
            "{} is there already and is no link to {}: remove it, or choose another --links \
             directory",
            link.display(),
            binary.display()
        );
    }
    Ok(links)
}

fn make_links(links: &[PathBuf], binary: &Path) -> anyhow::Result<()> {
    for link in links {
        let directory = link.parent().context("it lies in a directory")?;
        std::fs::create_dir_all(directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
        binaries::link(binary, link)?;
    }
    Ok(())
}

fn is_ours(link: &Path, binary: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|target| target == binary)
}

fn remove_links(directory: &Path, binary: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for link in NAMES.iter().map(|name| directory.join(name)) {
        if is_ours(&link, binary) {
            std::fs::remove_file(&link)
                .with_context(|| format!("{} cannot be removed", link.display()))?;
            removed.push(link);
        }
    }
    Ok(removed)
}

fn tell(shown: &Shown, start: &StartCommand, user: &str) {
    match &shown.path {
        Some(path) => {
            let name = unit::name(&start.mark);
            output::say(&format!("Wrote {}", path.display()));
            output::say(&format!("`systemctl --user start {name}` starts it without a reboot."));
        }
        None => output::say(&format!("Wrote into your crontab: {}", shown.text)),
    }
    if shown.lingers == Some(false) {
        output::complain(&format!(
            "your units end when you log out: `loginctl enable-linger {user}` starts them with the \
             machine (some hosts want root for that; else: cortex install --with crontab)"
        ));
    }
    for link in &shown.links {
        output::say(&format!("Linked {}", link.display()));
    }
    output::say("`cortex install --uninstall` takes it back.");
}
