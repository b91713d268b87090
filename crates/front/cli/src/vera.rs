//! `vera`, the client of the thesis, as a second name of this binary: it has the commands of its
//! appendix A, as they stand there. Each is one of ours; `settings` reads what the files and
//! options say.

mod add_node;
mod settings;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgGroup, Parser};
use serde_json::json;

use self::settings::VeraSettings;
use super::contexts::book::{self, ContextBook};
use super::{Global, Session, output, push};
use api_types::{ApplicationRow, ApplicationShown, CreateApplication, Scaled};
use client::encode;
use source::Vcs;

const NAME: &str = "vera";

#[derive(Debug, Parser)]
#[command(name = NAME, version, about, long_about = None, max_term_width = 100)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["new_app", "push", "ariel_port", "instances", "info", "add_node"]))]
/// Sets up and manages the application whose source is in this directory, as its .veraconfig names
/// it
struct Vera {
    /// Create the application
    #[arg(long)]
    new_app: bool,
    /// Its framework [default: what .veraconfig says, else what its source looks like]
    #[arg(long, value_name = "TYPE", requires = "new_app")]
    app_type: Option<String>,
    /// Push the source and roll it out
    #[arg(long)]
    push: bool,
    /// What kind of repository this is
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "auto|git|hg|bzr|dir",
        requires = "push"
    )]
    repo_type: Vcs,
    /// Let clients find the application on this port
    #[arg(long, value_name = "PORT")]
    ariel_port: Option<u16>,
    /// Run this many instances
    #[arg(long, value_name = "COUNT")]
    instances: Option<u32>,
    /// Show the state of the application
    #[arg(long)]
    info: bool,
    /// Let a brand new node, started with `cortex up --await`, into this cluster
    #[arg(long, value_name = "HOST:PORT")]
    add_node: Option<String>,
    /// The fingerprint that the new node shows, instead of being asked
    #[arg(long, value_name = "FINGERPRINT", requires = "add_node")]
    fingerprint: Option<String>,
    #[command(flatten)]
    global: Global,
}

/// Returns whether the binary was called by this name.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|path| Path::new(path).file_name() == Some(OsStr::new(NAME)))
}

pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let vera = match Vera::try_parse_from(arguments) {
        Ok(vera) => vera,
        Err(error) => {
            error.print().ok();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match vera.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::report(&error),
    }
}

impl Vera {
    fn run(self) -> anyhow::Result<()> {
        let layout = self.global.layout()?;
        let global = self.on_its_platform();
        let session = global.session(layout, self.add_node.is_some())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = runtime.block_on(self.perform(&session));
        runtime.shutdown_background();
        ended
    }

    /// Returns the options with the context of the node that `.veraconfig` names, if this account
    /// has logged in there; the file need not be there or name one.
    fn on_its_platform(&self) -> Global {
        let mut global = self.global.clone();
        let named = VeraSettings::read(Path::new(".")).ok().and_then(|settings| settings.node);
        let book = book::path(global.xdg_config_home.as_deref(), global.home.as_deref());
        let book = book.and_then(|path| ContextBook::load(&path));
        if let (Some(node), Ok(book), None, None) = (named, book, &global.context, &global.data_dir)
        {
            global.context = book.of_node(&node).map(String::from);
        }
        global
    }

    /// Performs what is asked for at once, in the order of the appendix.
    async fn perform(self, session: &Session) -> anyhow::Result<()> {
        if let Some(address) = &self.add_node {
            add_node::add(session, address, self.fingerprint.as_deref()).await?;
        }
        let about_app = self.new_app
            || self.push
            || self.info
            || self.ariel_port.is_some()
            || self.instances.is_some();
        if !about_app {
            return Ok(());
        }
        let settings = VeraSettings::read(Path::new("."))?;
        if self.new_app {
            create(session, &settings, self.app_type).await?;
        }
        if self.push {
            push::push_as(session, Path::new("."), self.repo_type, &settings.name).await?;
        }
        if let Some(port) = self.ariel_port {
            set_port(session, &settings, port).await?;
        }
        if let Some(count) = self.instances {
            scale(session, &settings, count).await?;
        }
        if self.info { info(session, &settings).await } else { Ok(()) }
    }
}

async fn create(
    session: &Session,
    settings: &VeraSettings,
    framework: Option<String>,
) -> anyhow::Result<()> {
    output::begin(&format!("Creating {}", settings.shown));
    let framework = framework.or_else(|| settings.framework.clone());
    let asked =
        CreateApplication { name: settings.name.to_string(), framework, port: settings.port };
    output::finish(session.client.post::<_, ApplicationRow>("/v1/apps", &asked).await)?;
    output::say("done");
    Ok(())
}

async fn set_port(session: &Session, settings: &VeraSettings, port: u16) -> anyhow::Result<()> {
    let path = format!("/v1/apps/{}/port", encode(settings.name.as_str()));
    output::begin(&format!("Opening port {port} for {}", settings.shown));
    let asked = json!({ "port": port });
    output::finish(session.client.post::<_, ApplicationRow>(&path, &asked).await)?;
    output::say("done");
    Ok(())
}

async fn scale(session: &Session, settings: &VeraSettings, count: u32) -> anyhow::Result<()> {
    let path = format!("/v1/apps/{}/scale", encode(settings.name.as_str()));
    output::begin(&format!(
        "Asking for {} of {}",
        output::count(count.into(), "instance"),
        settings.shown
    ));
    let asked = json!({ "web": count });
    output::finish(session.client.post::<_, Scaled>(&path, &asked).await)?;
    output::say("done");
    Ok(())
}

async fn info(session: &Session, settings: &VeraSettings) -> anyhow::Result<()> {
    let path = format!("/v1/apps/{}", encode(settings.name.as_str()));
    let shown: ApplicationShown = session.client.get(&path).await?;
    for line in lines(&settings.shown, &shown.row) {
        output::print(&line)?;
    }
    Ok(())
}

/// Returns the lines as the thesis shows them.
fn lines(name: &str, row: &ApplicationRow) -> Vec<String> {
    let framework = row.framework.as_deref().unwrap_or("not known before the first push");
    let port = row.port.map_or_else(|| "none".into(), |port| port.to_string());
    vec![
        format!("{name} settings"),
        String::new(),
        format!("Application type: {framework}"),
        format!("Port: {port}"),
        format!("Instances: {}", row.wanted),
        format!("Running: {}", row.ready),
    ]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn check(line: &str, good: bool) {
        let parsed = Vera::try_parse_from(line.split(' '));
        assert_eq!(parsed.is_ok(), good, "{line}: {parsed:?}");
    }

    #[test]
    fn the_commands_of_the_appendix_are_understood() {
        Vera::command().debug_assert();
        for line in [
            "vera --new-app --app-type rails",
            "vera --push --repo-type git",
            "vera --ariel-port 8000",
            "vera --instances 5",
            "vera --push",
            "vera --info",
            "vera --add-node my.new.miranda.host.address:8205",
        ] {
            check(line, true);
        }
        for line in ["vera", "vera --app-type rails", "vera --repo-type git", "vera push"] {
            check(line, false);
        }
        assert!(is_called(Some(&"/usr/bin/vera".into())) && !is_called(Some(&"cortex".into())));
    }

    #[test]
    fn settings_look_as_in_the_thesis() {
        let row = ApplicationRow {
            name: "testapp".into(),
            framework: Some("rails".into()),
            release: None,
            state: "running".into(),
            ready: 4,
            wanted: 7,
            port: Some(8000),
            url: None,
            created_at: String::new(),
            maintenance_since: None,
            password_since: None,
        };
        let shown = lines("TestApp", &row).join("\n");
        let expected = "TestApp settings\n\nApplication type: rails\nPort: 8000\nInstances: 7\n\
                        Running: 4";
        assert_eq!(shown, expected);
    }
}
