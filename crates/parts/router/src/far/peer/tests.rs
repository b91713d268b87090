//! The state of another node's router.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_in_time_is_not_given_up() {
    let peer = FarPeer::new(1, "n2".parse().unwrap());
    let waiting = peer.given_up();
    tokio::pin!(waiting);
    let still = |limit| async move { tokio::time::sleep(limit).await };
    peer.set_down(true);
    tokio::select! {
        () = &mut waiting => panic!("too early"),
        () = still(SILENCE_MAX / 2) => peer.set_down(false),
    }
    tokio::select! {
        () = &mut waiting => panic!("it is back"),
        () = still(SILENCE_MAX * 3) => peer.set_down(true),
    }
    waiting.await;
    assert!(peer.is_down());
}
