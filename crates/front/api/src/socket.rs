//! The UNIX socket of the API, for the account that the node runs as, and root.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::Context;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::net::{UnixListener, UnixStream};

use super::peer::Peer;
use os::layout::DataDirectory;

/// The pause after a failed accept; running out of descriptors is over in a moment or will be
/// reported again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub struct SocketListener {
    socket: UnixListener,
    uid: u32,
}

impl SocketListener {
    pub fn bind(layout: &DataDirectory) -> anyhow::Result<SocketListener> {
        os::directory::socket_directory(layout)?;
        let path = layout.api_socket();
        // The lock on the data directory is held, so a socket that lies here belongs to nobody.
        std::fs::remove_file(&path).ok();
        let socket = UnixListener::bind(&path)
            .with_context(|| format!("the API's socket {} cannot be made", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(SocketListener { socket, uid: rustix::process::getuid().as_raw() })
    }
}

impl Listener for SocketListener {
    type Io = UnixStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (UnixStream, Peer) {
        loop {
            let accepted = self.socket.accept().await;
            match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
                Ok((uid, stream)) if uid == self.uid || uid == 0 => {
                    return (stream, Peer::Socket { uid });
                }
                Ok((uid, _)) => tracing::warn!(uid, "api.stranger_refused"),
                Err(error) => {
                    tracing::warn!(%error, "api.accept_failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Peer> {
        Ok(Peer::Socket { uid: self.uid })
    }
}

impl Connected<IncomingStream<'_, SocketListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, SocketListener>) -> Peer {
        stream.remote_addr().clone()
    }
}
