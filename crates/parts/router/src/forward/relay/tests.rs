//! The machine over pairs of sockets, driven as a task drives it, or without waiting like the lane.

use std::iter::from_fn;
use std::net::Ipv4Addr;

use router_core::http::response::{self, AnsweredRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;
use crate::forward::pass::until_room;
use crate::tests::world::DEADLINE;

const LONG: usize = 300_000;
/// Bytes, more than the kernel holds for a client that takes nothing.
const VERY_LONG: usize = 32 << 20;

fn letters(count: usize) -> String {
    (0..count).map(|n| char::from(b'a' + (n % 26) as u8)).collect()
}

fn head(length: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")
}

fn why(failed: Failed) -> &'static str {
    match failed {
        Failed::Truncated(why) => why,
        Failed::ClientGone => "client gone",
        _ => "something else",
    }
}

async fn pair() -> (Plain, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = Plain::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

struct Means {
    from: Wire,
    to: Wire,
    pool: Pool,
}

impl Means {
    /// Returns what a relay is driven with, the instance and the client.
    async fn new() -> (Means, TcpStream, TcpStream) {
        let ((from, instance), (to, client)) = (pair().await, pair().await);
        let means = Means { from: from.into(), to: to.into(), pool: Pool::default() };
        (means, instance, client)
    }

    fn step(&self, relay: &mut Relay) -> Result<Next, &'static str> {
        relay.step(&self.from, &self.to, &self.pool).map_err(why)
    }

    fn send(&self, relay: &mut Relay) -> Result<bool, &'static str> {
        relay.send(&self.to, &self.pool).map_err(why)
    }

    /// Goes on, and waits for what is asked for, until that is `last`.
    async fn until(&self, relay: &mut Relay, last: Next) -> Result<(), &'static str> {
        let drive = async {
            loop {
                match self.step(relay)? {
                    next if next == last => return Ok(()),
                    Next::More => self.from.readable().await.unwrap(),
                    Next::Room => self.until_room(relay).await?,
                    Next::Turn => yield_now().await,
                    Next::End => panic!("it has ended"),
                }
            }
        };
        timeout(DEADLINE, drive).await.expect("it comes as far as that")
    }

    async fn until_room(&self, relay: &mut Relay) -> Result<(), &'static str> {
        until_room(&self.to, relay, &self.pool).await.map_err(why)
    }

    /// Goes on until all is sent.
    async fn finish(&self, relay: &mut Relay) -> Result<(), &'static str> {
        self.until(relay, Next::End).await?;
        while !self.send(relay)? {
            self.until_room(relay).await?;
        }
        Ok(())
    }
}

/// Begins to pass on an answer of which this was read.
fn begun(read: &str, chunks: Chunks) -> Relay {
    let mut out = Vec::new();
    let asked = AnsweredRequest {
        head: false,
        modern: true,
        keep_alive: true,
        transparent: true,
        of_router: false,
    };
    let head = response::parse(read.as_bytes(), asked, &mut out).unwrap().unwrap();
    let content = &read.as_bytes()[head.length..];
    let relay = Relay::begin(&head, content, out, chunks, Ipv4Addr::LOCALHOST.into());
    relay.map_err(why).unwrap()
}

async fn receive(client: &mut TcpStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    let received = timeout(DEADLINE, client.read_exact(&mut bytes)).await;
    received.expect("so much comes").unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Returns what a client receives that is sent nothing more.
async fn receive_all(means: Means, mut client: TcpStream) -> String {
    drop(means);
    let mut text = String::new();
    let received = timeout(DEADLINE, client.read_to_string(&mut text)).await;
    received.expect("it ends").unwrap();
    text
}

#[tokio::test]
async fn a_short_answer_that_has_come_is_sent_without_another_read() {
    for (behind, is_clean) in [("", true), ("HTTP/1.1 200 OK\r\n\r\n", false)] {
        let (means, instance, client) = Means::new().await;
        let answer = head(4) + "well";
        let mut relay = begun(&format!("{answer}{behind}"), Chunks::AsTheyCome);
        // A read would say that it has ended.
        drop(instance);
        assert_eq!(means.step(&mut relay), Ok(Next::End));
        assert_eq!((relay.is_clean(), relay.bytes_out()), (is_clean, answer.len() as u64));
        assert_eq!(means.send(&mut relay), Ok(true));
        let mut out = Vec::new();
        relay.give_back(&mut out);
        assert!(out.capacity() > 0, "its memory is there for the next one");
        assert_eq!(receive_all(means, client).await, answer);
    }
}

#[tokio::test]
async fn the_rest_of_a_short_answer_goes_out_together_with_its_head() {
    let (means, mut instance, client) = Means::new().await;
    let mut relay = begun(&(head(8) + "all "), Chunks::AsTheyCome);
    instance.write_all(b"well").await.unwrap();
    means.from.readable().await.unwrap();
    assert_eq!(means.step(&mut relay), Ok(Next::End));
    assert!(relay.unsent().iter().all(|piece| !piece.is_empty()), "nothing was sent before it");
    assert_eq!(means.send(&mut relay), Ok(true));
    assert!(relay.is_clean());
    assert_eq!(receive_all(means, client).await, head(8) + "all well");
}

#[tokio::test]
async fn a_long_answer_that_pauses_is_passed_on_as_it_comes() {
    let (means, mut instance, mut client) = Means::new().await;
    let content = letters(LONG);
    let (first, rest) = content.split_at(LONG / 2);
    let mut relay = begun(&(head(LONG) + &first[..100]), Chunks::AsTheyCome);
    let count = head(LONG).len() + first.len();
    let coming = async {
        instance.write_all(&first.as_bytes()[100..]).await.unwrap();
        receive(&mut client, count).await
    };
    let passing = async {
        while relay.bytes_out() < count as u64 {
            timeout(DEADLINE, means.from.readable()).await.expect("more comes").unwrap();
            means.until(&mut relay, Next::More).await.unwrap();
        }
    };
    let (came, ()) = tokio::join!(coming, passing);
    assert!(came == head(LONG) + first);
    assert_eq!(means.step(&mut relay), Ok(Next::More));
    assert!(relay.is_spliced() && !relay.has_come());

    let (written, finished, came) = tokio::join!(
        instance.write_all(rest.as_bytes()),
        means.finish(&mut relay),
        receive(&mut client, rest.len())
    );
    written.unwrap();
    finished.unwrap();
    assert!(came == rest && relay.is_clean());
    assert_eq!(relay.bytes_out(), (count + rest.len()) as u64);
    let Wire::Plain(from) = &means.from else { panic!("it is plain") };
    assert!(from.expect_any(), "another long one is expected");
}

#[tokio::test]
async fn bytes_behind_a_long_answer_reach_nobody() {
    for pipes in [true, false] {
        let (means, mut instance, mut client) = Means::new().await;
        let held: Vec<LentPipe> = match pipes {
            true => Vec::new(),
            false => from_fn(|| means.pool.pipe()).collect(),
        };
        let answer = head(LONG) + &letters(LONG);
        let mut relay = begun(&head(LONG), Chunks::AsTheyCome);
        let sent = letters(LONG) + "HTTP/1.1 200 OK\r\n\r\n";
        let (written, finished, came) = tokio::join!(
            instance.write_all(sent.as_bytes()),
            means.finish(&mut relay),
            receive(&mut client, answer.len())
        );
        written.unwrap();
        finished.unwrap();
        // What follows may come after the end was seen.
        let looking = async {
            while relay.is_clean() {
                means.from.readable().await.unwrap();
                relay.look_behind(&means.from);
            }
        };
        timeout(DEADLINE, looking).await.expect("it comes");
        assert!(came == answer && !relay.is_clean());
        assert_eq!((relay.bytes_out(), relay.is_spliced()), (answer.len() as u64, pipes));
        drop(held);
        assert_eq!(receive_all(means, client).await, "");
    }
}

#[tokio::test]
async fn an_answer_that_ends_too_early_is_sent_as_far_as_it_came_and_stays_broken() {
    for (length, came) in [(LONG, 40_000), (LONG, 0), (10_000, 9_999)] {
        let (means, mut instance, mut client) = Means::new().await;
        let mut relay = begun(&head(length), Chunks::AsTheyCome);
        instance.write_all(letters(came).as_bytes()).await.unwrap();
        drop(instance);
        assert_eq!(means.until(&mut relay, Next::End).await, Err(SHORT));
        assert_eq!(means.step(&mut relay), Err(SHORT));
        assert!(!relay.has_come());
        let sent = head(length) + &letters(came);
        assert_eq!(relay.bytes_out(), sent.len() as u64);
        assert!(receive(&mut client, sent.len()).await == sent);
    }
}

#[tokio::test]
async fn what_a_client_has_no_room_for_is_sent_later_by_whoever_goes_on() {
    let (mut means, mut instance, mut client) = Means::new().await;
    // No runtime watches these, as in the lane.
    for wire in [&mut means.from, &mut means.to] {
        let Wire::Plain(plain) = wire else { panic!("it is plain") };
        plain.unwatch();
    }
    let mut relay = begun(&head(VERY_LONG), Chunks::AsTheyCome);
    let sending = tokio::spawn(async move {
        instance.write_all(letters(VERY_LONG).as_bytes()).await.unwrap();
        instance
    });
    let full = async {
        while means.step(&mut relay) != Ok(Next::Room) {
            yield_now().await;
        }
    };
    timeout(DEADLINE, full).await.expect("there is no room at last");
    assert_eq!(means.step(&mut relay), Ok(Next::Room));

    let length = head(VERY_LONG).len() + VERY_LONG;
    let (finished, came) = tokio::join!(means.finish(&mut relay), receive(&mut client, length));
    finished.unwrap();
    assert!(came == head(VERY_LONG) + &letters(VERY_LONG));
    assert_eq!(relay.bytes_out(), length as u64);
    assert!(relay.is_clean());
    drop(sending.await.unwrap());
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_when_its_patience_is_spent() {
    for pipes in [true, false] {
        let (means, mut instance, _client) = Means::new().await;
        let held: Vec<LentPipe> = match pipes {
            true => Vec::new(),
            false => from_fn(|| means.pool.pipe()).collect(),
        };
        let mut relay = begun(&head(VERY_LONG), Chunks::AsTheyCome);
        relay.pace = Pace::spent();
        let zeros = vec![0; VERY_LONG];
        let sending = tokio::spawn(async move { instance.write_all(&zeros).await });
        assert_eq!(means.until(&mut relay, Next::End).await, Err("client gone"));
        assert_eq!(relay.is_spliced(), pipes);
        sending.abort();
        drop(held);
    }
}

#[tokio::test]
async fn chunks_reach_an_old_client_as_their_content_and_all_of_them() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (end, content, result) in [
        ("0\r\n\r\n", "allwell", Ok(())),
        ("", "allwell", Err(UNFINISHED)),
        ("x", "al", Err(BAD_CHUNKS)),
    ] {
        let (means, mut instance, mut client) = Means::new().await;
        let mut relay = begun(&format!("{head}3\r\nal"), Chunks::Content);
        instance.write_all(format!("l\r\n4\r\nwell\r\n{end}").as_bytes()).await.unwrap();
        drop(instance);
        assert_eq!(means.finish(&mut relay).await, result);
        let sent = format!("{head}{content}");
        assert_eq!(relay.bytes_out(), sent.len() as u64);
        assert_eq!(receive(&mut client, sent.len()).await, sent);
    }
}
