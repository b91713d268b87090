//! Waits that end together.

use std::future::{pending, poll_fn, ready};
use std::pin::pin;
use std::rc::Rc;

use super::*;

async fn waited(idlers: &Idlers, wait: impl Future<Output = u8>) -> Option<u8> {
    let (mut wait, mut idler) = (pin!(wait), idlers.wait());
    poll_fn(|cx| idler.poll(cx, wait.as_mut())).await
}

#[tokio::test(flavor = "local")]
async fn waits_end_together_and_leave_nothing_behind() {
    let idlers = Rc::new(Idlers::default());
    assert_eq!(waited(&idlers, ready(7)).await, Some(7));
    let given_up = waited(&idlers, pending());
    tokio::select! {
        biased;
        _ = given_up => panic!("nothing ends it"),
        () = tokio::task::yield_now() => {}
    }
    assert!(idlers.waiting.borrow().is_empty());
    let all: Vec<_> = (0..3)
        .map(|_| {
            let idlers = idlers.clone();
            tokio::task::spawn_local(async move { waited(&idlers, pending()).await })
        })
        .collect();
    while idlers.waiting.borrow().len() < all.len() {
        tokio::task::yield_now().await;
    }
    idlers.end();
    for one in all {
        assert_eq!(one.await.unwrap(), None);
    }
    assert_eq!(waited(&idlers, ready(7)).await, None, "it is over");
}
