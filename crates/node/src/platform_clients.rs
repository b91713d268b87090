//! The way of clients who ask for the platform by its own name on the port of HTTPS: the router
//! gives them here after their first message, and from here they go to the API, as those do that
//! come to the node port.

use std::sync::Arc;
use std::time::Duration;

use cluster::handshakes::{HANDSHAKES_MAX, Handshakes};
use cluster::peers::Peers;
use router::{PlatformClient, RouterHandle};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

/// The time that the rest of one may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Takes them from the router from now on. It must be called on the control runtime.
pub fn take(router: &RouterHandle, peers: &Arc<Peers>) {
    let (control, peers) = (Handle::current(), Arc::downgrade(peers));
    let (room, handshakes) = (Arc::new(Semaphore::new(HANDSHAKES_MAX)), Handshakes::default());
    router.take_platform(Box::new(move |client| {
        let Some(peers) = peers.upgrade() else { return };
        // One that finds no room is closed, and its client tries again or elsewhere.
        let Ok(permit) = room.clone().try_acquire_owned() else { return };
        let Some(handshake) = handshakes.begin(client.from.ip()) else { return };
        control.spawn(async move {
            let from = client.from;
            if let Err(error) = hand_over(client, &peers).await {
                tracing::debug!(%from, error = format!("{error:#}"), "node.platform_client_lost");
            }
            drop((permit, handshake));
        });
    }));
}

async fn hand_over(client: PlatformClient, peers: &Peers) -> anyhow::Result<()> {
    let PlatformClient { stream, from, hello, config } = client;
    let stream = TcpStream::from_std(stream)?;
    let shaking = StartHandshake::from_parts(hello, stream).into_stream(config);
    let stream = timeout(HANDSHAKE_TIME_MAX, shaking).await??;
    peers.hand_over_client(from.ip(), Box::new(stream))
}
