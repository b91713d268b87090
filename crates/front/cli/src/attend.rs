//! `cortex attend`: runs in a node process that has handed over to its successor; see
//! `upgrade::attend`.

use clap::Args;

use super::{Exit, Session};
use upgrade::attend;

#[derive(Debug, Args)]
pub struct Attend {
    /// The process that runs the node
    #[arg(long, value_name = "PID")]
    node: u32,
}

impl Attend {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        match attend::run(&session.layout, self.node)? {
            0 => Ok(()),
            code => Err(Exit(code).into()),
        }
    }
}
