//! The protocol between a node and a shim: JSON lines with a version. Fields are only ever added,
//! unknown ones ignored, as shims are older than the nodes that adopt them.

use serde::{Deserialize, Serialize};

use super::record::{ExitRecord, Holding};
use crate::spec::{LaunchSpec, SessionSpec};

/// The only version so far.
pub const VERSION: u32 = 1;
/// The maximum length of a line in bytes. Linux takes at most 2 MiB of arguments and environment by
/// default.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// A message from the node.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShimRequest {
    pub v: u32,
    #[serde(flatten)]
    pub ask: ShimCommand,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum ShimCommand {
    /// Asks to start a process, once per shim. Answered by `Running` or `Failed`.
    Launch {
        spec: LaunchSpec,
        /// The first lease, as in `Renew`; a node of an earlier version gives none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u64>,
        /// The session that is held; `None` for what nobody is connected to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<SessionSpec>,
    },
    /// Asks for the session. Answered by `Attaching`; from then on the connection is that of a
    /// client, in frames of `session_core`.
    Attach {
        /// The person at the other end.
        by: String,
    },
    /// Asks to hang up for a client that is gone for good, unless somebody is attached. Answered by
    /// `Signalled`.
    HangUp,
    /// Asks to signal the main process's group, while that process runs. Answered by `Signalled`.
    Signal { signal: i32 },
    /// Asks for SIGTERM to the whole tree, and SIGKILL after `grace_ms`. Answered by `Stopping`;
    /// `Ended` follows.
    Stop { grace_ms: u64 },
    /// Asks to stop what is held, from now on, when no node process is heard for this long; without
    /// a limit, never. Every request and every new connection counts as being heard. Answered by
    /// `Renewed`.
    Renew {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u64>,
    },
    /// Asks for nothing but to be heard: the lease that was given last starts anew. Answered by
    /// `Renewed`.
    Greet,
    /// Asks the shim to end; only after the process has ended. Answered by `Forgotten`. The run
    /// directory is the node's to remove.
    Forget,
}

/// A message from the shim. The first one of every connection is the state: `Waiting`, `Running` or
/// `Ended`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShimReply {
    pub v: u32,
    #[serde(flatten)]
    pub tell: Tell,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// Nothing was launched yet.
    Waiting,
    Running {
        holding: Holding,
    },
    Ended {
        ended: ExitRecord,
    },
    /// No process came into being; the shim ends.
    Failed {
        why: String,
    },
    Attaching,
    Stopping,
    Signalled,
    Renewed,
    Forgotten,
    /// The request was refused; the connection stays.
    Refused {
        why: String,
    },
}

/// Encodes a message as one line, with its end.
pub fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_ignored() {
        let request: ShimRequest =
            serde_json::from_str(r#"{"v":1,"ask":"stop","grace_ms":5,"later":[1]}"#).unwrap();
        assert!(matches!(request.ask, ShimCommand::Stop { grace_ms: 5 }));
    }

    #[test]
    fn messages_are_read_back() {
        let said =
            line(&ShimReply { v: VERSION, tell: Tell::Refused { why: "a\nb".into() } }).unwrap();
        assert_eq!(said.iter().filter(|byte| **byte == b'\n').count(), 1);
        let heard: ShimReply = serde_json::from_slice(&said).unwrap();
        assert!(matches!(heard.tell, Tell::Refused { why } if why == "a\nb"));
    }
}
