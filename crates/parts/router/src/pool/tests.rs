//! Connections that are kept.

use std::net::SocketAddr;

use super::*;
use crate::plain::Plain;
use model::{InstanceId, ProcessType};

#[test]
fn large_buffers_are_few_and_used_again() {
    let pool = Pool::default();
    let taken: Vec<Buffer> = (0..LARGE_USED_MAX + 3).map(|_| pool.large()).collect();
    let large = taken.iter().filter(|buffer| buffer.size() == LARGE_BYTES).count();
    assert_eq!(large, LARGE_USED_MAX);
    taken.into_iter().for_each(|buffer| pool.give_back(buffer));
    assert_eq!((pool.large_used.get(), pool.large.borrow().len()), (0, LARGE_KEPT));
    assert_eq!(pool.read.borrow().len(), 3);
}

fn endpoint(serial: u64, address: SocketAddr) -> Arc<Endpoint> {
    let (application, process) = ("shop".parse().unwrap(), ProcessType::web());
    let instance = InstanceId { application, process, slot: 1 };
    Arc::new(Endpoint::at(serial, instance, address, None))
}

#[tokio::test]
async fn unsafe_requests_are_sent_on_no_connection_that_just_closed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (pool, endpoint, now) = (Pool::default(), endpoint(1, address), Instant::now());
    for (only_fresh, found) in [(false, true), (true, false)] {
        let stream = Plain::connect(address).await.unwrap();
        let (other, _) = listener.accept().await.unwrap();
        pool.keep(&endpoint, stream.into(), now);
        // The runtime hears of it at the next wait.
        drop(other);
        assert_eq!(pool.take(&endpoint, only_fresh, now).is_some(), found);
    }
}

#[tokio::test]
async fn the_connections_used_longest_ago_make_room() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (pool, first, second) = (Pool::default(), endpoint(1, address), endpoint(2, address));
    let (count, mut others) = (LET_GO + 3, Vec::new());
    for number in 0..count {
        let stream = Plain::connect(address).await.unwrap();
        others.push(listener.accept().await.unwrap());
        let endpoint = if number < LET_GO { &first } else { &second };
        pool.keep(endpoint, stream.into(), Instant::now());
    }
    assert_eq!(pool.idle_count.get(), count);
    pool.make_room();
    assert_eq!(pool.idle_count.get(), count - LET_GO);
    let take = |endpoint| pool.take(endpoint, false, Instant::now());
    assert!(take(&first).is_none() && take(&second).is_some());
    pool.make_room();
    pool.make_room();
    assert_eq!(pool.idle_count.get(), 0);
}
