//! Waits one after the other, and beside each other.

use std::future::{pending, poll_fn};
use std::time::Duration;

use super::*;

async fn rings_after(timer: &LazyTimer, seconds: u64) -> u64 {
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(seconds);
    poll_fn(|cx| timer.poll(cx, deadline)).await;
    begun.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn each_wait_ends_when_it_should() {
    let timer = LazyTimer::default();
    for seconds in [5, 1, 60, 60, 0, 2] {
        assert_eq!(rings_after(&timer, seconds).await, seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ended_early_does_not_shorten_the_next() {
    let timer = LazyTimer::default();
    for short in [1, 3, 9] {
        tokio::select! {
            _ = rings_after(&timer, 10) => panic!("too early"),
            () = tokio::time::sleep(Duration::from_secs(short)) => {}
        }
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(rings_after(&timer, 7).await, 7);
}

#[tokio::test(start_paused = true)]
async fn two_waits_of_one_task_end_each_in_its_time() {
    let timer = LazyTimer::default();
    let (long, short) = tokio::join!(rings_after(&timer, 9), rings_after(&timer, 4));
    assert_eq!((long, short), (9, 4));
    let late = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        rings_after(&timer, 30).await
    };
    let (early, late) = tokio::join!(rings_after(&timer, 8), late);
    assert_eq!((early, late), (8, 30));
    let never = tokio::time::timeout(Duration::from_secs(1), pending::<()>());
    assert!(never.await.is_err());
}
