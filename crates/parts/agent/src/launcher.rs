//! The extension point between the agent and the operating system: how processes come into being.
//! `plain` starts them under a shim that outlives this node process; a sandboxed launcher comes
//! beside it.

use std::time::Duration;

use agent_core::application::Exit;
use async_trait::async_trait;
use model::instance::ProcessIdentity;
use model::port::InstancePorts;
use model::{Timestamp, Wall};
use tokio::sync::watch;

use runtime::members::BoxedStream;
use shim::spec::{LaunchSpec, Purpose, SessionSpec};

/// A process held by a shim. Dropping this lets go of the shim and leaves the process running.
#[async_trait]
pub trait Held: Send + Sync {
    fn purpose(&self) -> &Purpose;
    fn process(&self) -> &ProcessIdentity;
    fn port(&self) -> Option<u16>;
    fn ports(&self) -> &InstancePorts;
    /// Holds `Some` once the whole process tree is gone. A shim that vanished counts as an exit
    /// too.
    fn exit(&self) -> watch::Receiver<Option<Exit>>;
    /// Sends SIGTERM to the whole tree, and SIGKILL after `grace`; returns when that is under way.
    /// May be called again with a shorter grace.
    async fn stop(&self, grace: Duration) -> anyhow::Result<()>;
    /// Sends a signal to the main process's group; does nothing once that has ended.
    async fn signal(&self, signal: i32) -> anyhow::Result<()>;
    /// Removes what the shim left on disk, once the exit was taken note of.
    async fn forget(&self) -> anyhow::Result<()>;
    fn started_at(&self) -> Timestamp;
    /// Returns the session, if clients attach to it.
    fn session(&self) -> Option<&SessionSpec> {
        None
    }
    /// Returns a connection to whatever holds the session, for a client of this person.
    async fn attach(&self, _by: &str) -> anyhow::Result<BoxedStream> {
        anyhow::bail!("nobody can be connected to it")
    }
    /// Hangs up for somebody who is gone for good, unless somebody is attached.
    async fn hang_up(&self) -> anyhow::Result<()> {
        Ok(())
    }
    /// Returns once its shim is gone.
    async fn gone(&self) {
        std::future::pending().await
    }
}

#[async_trait]
pub trait Launcher: Send + Sync {
    /// Returns once the process exists (or could not be made: that is an error that says why).
    async fn launch(&self, spec: LaunchSpec) -> anyhow::Result<Box<dyn Held>>;
    /// Launches it like `launch`, held for clients that attach to it in place of a log.
    async fn launch_session(
        &self,
        _spec: LaunchSpec,
        _session: SessionSpec,
    ) -> anyhow::Result<Box<dyn Held>> {
        anyhow::bail!("nobody can be connected to what this launcher starts")
    }
    /// Tries whether a wall can be built around what is launched; the error says why not.
    async fn try_wall(&self, _wall: Wall) -> anyhow::Result<()> {
        Ok(())
    }
    /// Sets how long processes go on without a node process before they are stopped; `None` for
    /// ever. Until this is called they keep the limit that an earlier node process gave them.
    fn lease(&self, limit: Option<Duration>);
    /// Returns all that earlier node processes left running, or that ended and is not yet
    /// forgotten.
    async fn adopt(&self) -> anyhow::Result<Vec<Box<dyn Held>>>;
}

#[cfg(test)]
pub mod fake;
