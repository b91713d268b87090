//! The small process that holds one application process: starts it, keeps its output and its exit,
//! stops its whole tree. It outlives the node process and never restarts anything. Runs before any
//! runtime, on one thread, with std, rustix and the crates of the sandbox and of sessions only;
//! driven by the node through a UNIX socket (`message`). Must not know of the store, of releases,
//! or of the node's configuration.

pub mod message;
pub mod network;
pub mod record;
pub mod spec;

mod cap;
mod child;
mod connection;
mod descriptors;
mod hold;
pub mod log;
mod output;
mod relay;
mod running;
pub mod sandbox;
mod session;
mod tree;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use os::binaries::OWN_BINARY;
use os::observe::HOLDER;

/// The first argument of the process that starts the shim and ends, so that the shim is nobody's
/// child. The run directory and the path of the socket follow. Standard input is the listening
/// socket.
pub const DETACH: &str = "__shim-detach";
/// The only argument of what becomes the application's process, as everything else comes through
/// standard input.
const EXEC: &str = "__exec";
/// The first argument of a process that tries whether a wall can be built, and of the one within.
/// The word for the wall follows.
const TRY_WALL: &str = "__try-wall";
const TRY_WITHIN: &str = "__try-within";
/// The only argument of the process between a network of its own and the machine's.
const RELAY: &str = "__relay";
/// The only argument of what becomes the program that leads out of such a network.
const WAY_OUT: &str = "__way-out";

/// The beginning of all of these, which no command of people's has.
const OWN_PARTS: &str = "__";

/// The name that listings of processes show for it.
const OWN_NAME: &str = "cortex";

/// Runs the part of a shim that this process was started as, or returns `None`; to be called first
/// in `main`.
pub fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let part = arguments.next()?;
    let part = part.to_str().filter(|part| part.starts_with(OWN_PARTS))?;
    // What these need comes by stdin.
    os::inherited::close();
    let result = match part {
        DETACH => detach(arguments.collect()),
        HOLDER => shim(arguments.collect()),
        EXEC => child::become_program(),
        TRY_WALL => sandbox::attempt::outside(&arguments.next()?),
        TRY_WITHIN => sandbox::attempt::within(&arguments.next()?),
        RELAY => relay::become_relay(),
        WAY_OUT => relay::way_out::become_program(),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn detach(arguments: Vec<OsString>) -> anyhow::Result<()> {
    rustix::process::setsid()?;
    Command::new(OWN_BINARY).arg0(OWN_NAME).arg(HOLDER).args(arguments).spawn()?;
    Ok(())
}

fn shim(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let Ok([run, socket]) = <[OsString; 2]>::try_from(arguments) else {
        anyhow::bail!("a shim is started by a node only, with a directory and a socket");
    };
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    hold::run(PathBuf::from(run), PathBuf::from(socket), listener)
}

/// Returns the command that starts a shim. It ends at once; the shim lives on.
pub fn command(binary: &Path, run: &Path, socket: &Path, listener: UnixListener) -> Command {
    let mut command = Command::new(binary);
    command.arg0(OWN_NAME).arg(DETACH).arg(run).arg(socket);
    command.env_clear().current_dir("/");
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener))).stdout(Stdio::null());
    command
}
