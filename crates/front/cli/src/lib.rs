//! The command line: one file per command, each with its arguments, one call and its printing. Data
//! goes to stdout, everything else to stderr.

pub mod address;
mod application;
mod apps;
mod attach;
mod attend;
mod audit;
mod authority;
mod backups;
mod bench;
mod certs;
mod completions;
mod config;
mod contexts;
mod deploy;
mod doctor;
mod domains;
mod dotenv;
mod down;
mod export;
mod git;
mod hidden;
mod https;
mod import;
mod info;
mod install;
mod installation;
mod isolation;
mod login;
mod logs;
mod maintenance;
mod metrics;
mod nodes;
mod open;
mod output;
mod pass_phrase;
mod password;
mod persist;
mod pin;
mod proxy;
mod ps;
mod push;
mod releases;
mod restart;
mod rollback;
mod router;
mod run;
mod scale;
mod secrets;
mod self_check;
mod spelling;
mod status;
mod store;
mod teams;
mod tokens;
mod trust;
mod undo;
mod up;
mod upgrade;
mod users;
mod vera;
mod whoami;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use client::{Client, ClientError};
use contexts::choice::{Chosen, choose, local, refresh};
use os::layout::DataDirectory;

/// The directory of sockets without XDG_RUNTIME_DIR. Existing nodes' sockets are found from the
/// data directory; this is where a new node puts them.
const RUNTIME_FALLBACK: &str = "/tmp";

/// The version with the profile: only `dist` is as fast as what is shipped.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("CORTEX_PROFILE"), ")");

#[derive(Debug, Parser)]
#[command(name = "cortex", version = VERSION, about, long_about = None, max_term_width = 100)]
/// Turns Linux machines into a hosting platform for web applications
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Args)]
struct Global {
    /// The node's data directory [default: $XDG_DATA_HOME/cortex]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "CORTEX_DATA_DIR",
        hide_env_values = true
    )]
    data_dir: Option<PathBuf>,
    /// Whether output of applications keeps its colours
    #[arg(
        long,
        visible_alias = "colour",
        global = true,
        value_name = "WHEN",
        default_value = "auto"
    )]
    color: output::Colours,
    /// The token to come with, instead of the credentials of the account
    #[arg(long, env = "CORTEX_TOKEN", hide = true, hide_env_values = true, global = true)]
    token: Option<String>,
    /// The platform to speak to, as `cortex contexts` names it, or `local`
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "CORTEX_CONTEXT",
        hide_env_values = true
    )]
    context: Option<String>,
    /// What to say of a change: the audit and the list of releases show it
    #[arg(long, global = true, value_name = "TEXT")]
    note: Option<String>,
    /// Where a platform is found without a context: https://HOST:PORT#FINGERPRINT
    #[arg(long, env = "CORTEX_URL", hide = true, hide_env_values = true, global = true)]
    url: Option<String>,
    #[arg(long, env = "NO_COLOR", hide = true, global = true)]
    no_color: Option<String>,
    #[arg(long, env = "XDG_DATA_HOME", hide = true, global = true)]
    xdg_data_home: Option<PathBuf>,
    #[arg(long, env = "XDG_RUNTIME_DIR", hide = true, global = true)]
    xdg_runtime_dir: Option<PathBuf>,
    #[arg(long, env = "XDG_CONFIG_HOME", hide = true, global = true)]
    xdg_config_home: Option<PathBuf>,
    #[arg(long, env = "HOME", hide = true, global = true)]
    home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start this machine's node; with a directory, push that and print its URL
    Up(up::Up),
    /// Stop the node and everything it started
    Down(down::Down),
    /// Let this machine start its node by itself, after a reboot too
    Install(install::Install),
    /// Show the node and its applications
    Status(status::Status),
    /// Check this machine and say what to do
    Doctor(doctor::Doctor),
    /// List, create or destroy applications
    Apps(apps::Apps),
    /// Push a directory or a revision of a repository, and roll it out
    Push(push::Push),
    /// Say how many instances of each process type run
    Scale(scale::Scale),
    /// List what runs
    Ps(ps::Ps),
    /// Show one application
    Info(info::Info),
    /// Print the URL of an application, and show it in a browser where there is one
    Open(open::Open),
    /// Show an application's output
    Logs(logs::Logs),
    /// Run a command in the environment of the release that serves
    Run(run::Run),
    /// Go on with a command that `cortex run` started
    Attach(attach::Attach),
    /// Close an application to its clients while its instances run on, or open it again
    Maintenance(maintenance::Maintenance),
    /// Ask the clients of an application for a password, or for none again
    Password(password::PasswordCommand),
    /// Replace all instances, one after another
    Restart(restart::Restart),
    /// List, set or unset an application's variables
    Config(config::Config),
    /// List, add or remove the domains that lead to an application
    Domains(domains::Domains),
    /// List, add or remove certificates of your own for an application's domains
    #[command(alias = "certificates")]
    Certs(certs::Certs),
    /// Have this machine's browsers believe https://NAME.localhost
    Trust(trust::Trust),
    /// List an application's releases
    Releases(releases::Releases),
    /// Go back to an earlier release
    Rollback(rollback::Rollback),
    /// Take back the last change of an application
    Undo(undo::Undo),
    /// List the cluster's nodes, invite, drain or remove one
    #[command(alias = "node")]
    Nodes(nodes::Nodes),
    /// Keep files across releases, or show which are kept
    Persist(persist::Persist),
    /// List the people of the platform, add or remove one, grant or revoke roles
    Users(users::Users),
    /// Show or choose whether applications that say nothing run behind a wall
    Isolation(isolation::Isolation),
    /// Show how secrets are sealed, or seal them with another key
    Secrets(secrets::Secrets),
    /// List teams, add or remove one, give them applications or take them
    Teams(teams::Teams),
    /// List tokens, create or revoke one
    Tokens(tokens::Tokens),
    /// Let `git push cortex` push to an application
    Git(git::Git),
    /// Show who changed what
    Audit(audit::Audit),
    /// Log in to a platform elsewhere with an invitation
    Login(login::Login),
    /// Log out, and have the token revoked
    Logout(login::Logout),
    /// Show who you are on the platform, and which nodes it has
    Whoami(whoami::Whoami),
    /// List the platforms that you are logged in to
    Contexts(contexts::Contexts),
    /// Choose the platform that commands go to
    Use(contexts::Use),
    /// Move an application that keeps files to another node, with its files
    Pin(pin::Pin),
    /// Write the whole cluster to one file, which a pass-phrase opens
    Export(export::Export),
    /// Bring a cluster in from such a file, to a node that was just started
    Import(import::Import),
    /// List copies of the cluster, or have them made every day
    #[command(alias = "backup")]
    Backups(backups::Backups),
    /// Read and write the store
    Store(store::Store),
    /// Bring requests to copies of any server, without a node
    Proxy(Box<proxy::Proxy>),
    /// Let nginx or HAProxy bring requests to the instances
    Router(router::Router),
    /// Print the node's metrics in the format of Prometheus
    Metrics(metrics::Metrics),
    /// Let all nodes run another binary of Cortex, one after the other
    Upgrade(upgrade::Upgrade),
    /// Print what lets a shell complete commands: `source <(cortex completions bash)`
    Completions(completions::Completions),
    /// Say whether this binary works here, and which formats it knows
    #[command(hide = true)]
    SelfCheck(self_check::SelfCheck),
    /// Stand for a node process that has handed over
    #[command(hide = true)]
    Attend(attend::Attend),
    /// Measure this platform on this machine
    Bench(bench::Bench),
}

/// The application that a command is about.
#[derive(Clone, Debug, Args)]
struct App {
    /// The application [default: the name in cortex.toml, else the directory's]
    #[arg(short = 'a', long = "app", value_name = "NAME")]
    app: Option<String>,
}

impl App {
    /// Returns this choice, else the outer one: `-a` may stand before or after a subcommand.
    fn or(self, outer: App) -> App {
        App { app: self.app.or(outer.app) }
    }
}

#[derive(Clone, Copy, Debug, Args)]
struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Json {
    /// Returns whether either asks for it: `--json` may stand before or after a subcommand.
    fn or(self, outer: Json) -> Json {
        Json { json: self.json || outer.json }
    }
}

/// The context that every command gets.
struct Session {
    layout: DataDirectory,
    /// The user's home and configuration directories, as far as the environment names them.
    home: Option<PathBuf>,
    configuration: Option<PathBuf>,
    /// The directory of this user's sockets.
    runtime: PathBuf,
    client: Client,
    /// The context that the client is of; `None` for the node on this machine.
    context: Option<String>,
}

impl Session {
    /// Takes the nodes of the platform as the last answer had them.
    async fn learn(&self) {
        if let (Some(context), Ok(path)) = (&self.context, self.contexts()) {
            refresh(&self.client, context, &path).await;
        }
    }

    /// Returns the path of the file of contexts.
    fn contexts(&self) -> anyhow::Result<PathBuf> {
        contexts::book::path(self.configuration.as_deref(), self.home.as_deref())
    }
}

/// The exit code of a command that has printed its error already.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Exit(u8);

pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if vera::is_called(arguments.first()) {
        return vera::main(arguments);
    }
    if git::remote::is_called(arguments.first()) {
        return git::remote::main(arguments);
    }
    main_with(arguments)
}

fn main_with(arguments: Vec<OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(spelling::normalise(arguments)) {
        Ok(cli) => cli,
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            error.print().ok();
            return ExitCode::from(code);
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(Exit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if error.is::<deploy::ReleaseFailed>() {
        return ExitCode::FAILURE;
    }
    if is_of_output(error) {
        return ExitCode::SUCCESS;
    }
    output::say(&format!("Error: {error:#}"));
    let hint = error.downcast_ref::<ClientError>().and_then(ClientError::hint);
    if let Some(hint) = hint {
        output::say(&format!("  {hint}"));
    }
    if let Some(hint) = application::hint(error) {
        output::say(&format!("  {hint}"));
    }
    ExitCode::FAILURE
}

/// Returns whether the output was closed: `cortex logs | head` has seen enough. A connection that
/// the node closed is another matter.
fn is_of_output(error: &anyhow::Error) -> bool {
    let broken_pipe = error.chain().any(|cause| {
        let cause: Option<&std::io::Error> = cause.downcast_ref();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    });
    broken_pipe && !error.chain().any(|cause| cause.is::<hyper::Error>())
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let layout = cli.global.layout()?;
    let refused = cli.global.no_color.as_ref().is_some_and(|said| !said.is_empty());
    output::show_colours(cli.global.color, refused);
    let context = cli.global.session(layout, cli.command.is_of_this_machine())?;
    if let Command::Up(up) = cli.command {
        return up.run(&context);
    }
    if let Command::Install(install) = cli.command {
        return install.run(&context);
    }
    if let Command::Attend(attend) = cli.command {
        return attend.run(&context);
    }
    if let Command::Proxy(proxy) = cli.command {
        return proxy.run(&context);
    }
    if let Command::Bench(bench) = cli.command {
        return bench.run();
    }
    let command = match cli.command {
        Command::Store(store) => match store.alone() {
            Ok(serve) => return serve.run(&context),
            Err(store) => Command::Store(*store),
        },
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        dispatch(command, &context).await?;
        context.learn().await;
        Ok(())
    });
    // A thread that waits for the terminal must not keep the command from ending.
    runtime.shutdown_background();
    ended
}

impl Command {
    /// Returns whether it is about this machine, whatever platform is in use.
    fn is_of_this_machine(&self) -> bool {
        matches!(
            self,
            Command::Up(_)
                | Command::Down(_)
                | Command::Install(_)
                | Command::Attend(_)
                | Command::Proxy(_)
                | Command::Bench(_)
                | Command::SelfCheck(_)
                | Command::Trust(_)
                | Command::Login(_)
                | Command::Contexts(_)
                | Command::Completions(_)
                | Command::Use(_)
        )
    }
}

async fn dispatch(command: Command, context: &Session) -> anyhow::Result<()> {
    match command {
        Command::Up(_)
        | Command::Install(_)
        | Command::Attend(_)
        | Command::Proxy(_)
        | Command::Bench(_) => {
            unreachable!("started above, without this runtime")
        }
        Command::Down(command) => command.run(context).await,
        Command::Status(command) => command.run(context).await,
        Command::Doctor(command) => command.run(context).await,
        Command::Apps(command) => command.run(context).await,
        Command::Push(command) => command.run(context).await,
        Command::Scale(command) => command.run(context).await,
        Command::Ps(command) => command.run(context).await,
        Command::Info(command) => command.run(context).await,
        Command::Open(command) => command.run(context).await,
        Command::Logs(command) => command.run(context).await,
        Command::Run(command) => command.run(context).await,
        Command::Attach(command) => command.run(context).await,
        Command::Restart(command) => command.run(context).await,
        Command::Maintenance(command) => command.run(context).await,
        Command::Password(command) => command.run(context).await,
        Command::Config(command) => command.run(context).await,
        Command::Domains(command) => command.run(context).await,
        Command::Certs(command) => command.run(context).await,
        Command::Trust(command) => command.run(context),
        Command::Releases(command) => command.run(context).await,
        Command::Rollback(command) => command.run(context).await,
        Command::Undo(command) => command.run(context).await,
        Command::Nodes(command) => command.run(context).await,
        Command::Persist(command) => command.run(context).await,
        Command::Export(command) => command.run(context).await,
        Command::Import(command) => command.run(context).await,
        Command::Backups(command) => command.run(context).await,
        Command::Pin(command) => command.run(context).await,
        Command::Users(command) => command.run(context).await,
        Command::Isolation(command) => command.run(context).await,
        Command::Secrets(command) => command.run(context).await,
        Command::Teams(command) => command.run(context).await,
        Command::Tokens(command) => command.run(context).await,
        Command::Audit(command) => command.run(context).await,
        Command::Git(command) => command.run(context).await,
        Command::Login(command) => command.run(context).await,
        Command::Logout(command) => command.run(context).await,
        Command::Whoami(command) => command.run(context).await,
        Command::Contexts(command) => command.run(context),
        Command::Use(command) => command.run(context),
        Command::Completions(command) => {
            command.run();
            Ok(())
        }
        Command::Store(command) => command.run(context).await,
        Command::Router(command) => command.run(context).await,
        Command::Metrics(command) => command.run(context).await,
        Command::Upgrade(command) => command.run(context).await,
        Command::SelfCheck(command) => command.run().await,
    }
}

impl Global {
    fn layout(&self) -> anyhow::Result<DataDirectory> {
        let root = match (&self.data_dir, &self.xdg_data_home, &self.home) {
            (Some(root), _, _) => root.clone(),
            (None, Some(data), _) if data.is_absolute() => data.join("cortex"),
            (None, _, Some(home)) => home.join(".local/share/cortex"),
            (None, _, None) => {
                anyhow::bail!("your home directory cannot be found: use --data-dir DIR")
            }
        };
        let root = absolute(&root)?;
        Ok(DataDirectory::find(root, &self.runtime()))
    }

    /// Returns what a command gets; one of this machine speaks to its node, whatever is in use.
    fn session(&self, layout: DataDirectory, of_this_machine: bool) -> anyhow::Result<Session> {
        let (home, configuration) = (self.home.clone(), self.xdg_config_home.clone());
        let chosen = match of_this_machine {
            true => local(self, &layout)?,
            false => {
                let path = contexts::book::path(configuration.as_deref(), home.as_deref());
                choose(self, &layout, &path.unwrap_or_default())?
            }
        };
        let (Chosen { client, context }, runtime) = (chosen, self.runtime());
        let client = match &self.note {
            Some(note) => client.with_note(note)?,
            None => client,
        };
        Ok(Session { layout, home, configuration, runtime, client, context })
    }

    fn runtime(&self) -> PathBuf {
        let uid = rustix::process::getuid().as_raw();
        match &self.xdg_runtime_dir {
            Some(runtime) if runtime.is_dir() => runtime.join("cortex"),
            _ => Path::new(RUNTIME_FALLBACK).join(format!("cortex-{uid}")),
        }
    }
}

/// Returns the same path for a directory however it is named; it need not exist yet.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let absolute = std::path::absolute(path)
        .with_context(|| format!("{} cannot be a directory's name", path.display()))?;
    match (absolute.parent().and_then(|parent| parent.canonicalize().ok()), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.join(name)),
        _ => Ok(absolute),
    }
}

#[cfg(test)]
mod tests;
