//! Tests of which values are fetched and in which order, and of what their readers are told
//! meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::world::{Fate, Node, Peers, bytes};
use crate::bulk::fetch_board::FetchBoard;
use crate::bulk::schedule::MissingValues;
use crate::bulk::{GROUP_BYTES, SPAN_GROUPS, StatedHash, ValueName};
use crate::{StoreError, Value};

const SPAN: usize = SPAN_GROUPS * GROUP_BYTES;
/// A time limit far above what any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stand-in for the store: the values it wants, newest first, and those that came.
#[derive(Default)]
struct Wishes {
    missing: Mutex<Vec<ValueName>>,
    came: Mutex<Vec<ValueName>>,
    claims: Mutex<Vec<StatedHash>>,
}

impl Wishes {
    fn of(values: &[ValueName]) -> Arc<Wishes> {
        Arc::new(Wishes { missing: Mutex::new(values.to_vec()), ..Wishes::default() })
    }

    fn missing_now(&self) -> std::sync::MutexGuard<'_, Vec<ValueName>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn came(&self) -> Vec<ValueName> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn wait_for(&self, count: usize) {
        let all = async {
            while self.came().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let came = timeout(PATIENCE, all).await;
        came.unwrap_or_else(|_| panic!("{} of {count} came", self.came().len()));
    }
}

impl MissingValues for Wishes {
    fn missing(&self, max: usize, skip: &dyn Fn(&ValueName) -> bool) -> Vec<ValueName> {
        self.missing_now().iter().filter(|value| !skip(value)).take(max).copied().collect()
    }

    fn is_missing(&self, value: &ValueName) -> bool {
        self.missing_now().contains(value)
    }

    fn claims(&self, _: &ValueName) -> Vec<StatedHash> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn arrived(&self, values: &[ValueName]) {
        self.missing_now().retain(|value| !values.contains(value));
        self.came.lock().unwrap_or_else(PoisonError::into_inner).extend(values);
    }
}

/// Stops the fetch board's thread with the test.
struct Fetching(Arc<FetchBoard>);

impl Fetching {
    fn start(to: &Node, peers: &Arc<Peers>, wishes: &Arc<Wishes>) -> Fetching {
        let fetch_board = FetchBoard::new(to.values.clone());
        fetch_board.start(peers.clone(), wishes.clone()).unwrap();
        Fetching(fetch_board)
    }

    fn value(&self, name: ValueName) -> Value {
        let hash = model::value::ContentHash(name.hash);
        Value::Away { hash, size: name.size, fetch_board: self.0.clone() }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.stop();
    }
}

async fn read(value: &Value) -> Result<Vec<u8>, StoreError> {
    let mut reader = value.reader().await?.expect("it is large");
    let mut all = Vec::new();
    while let Some(bytes) = reader.next().await? {
        assert!(bytes.len() <= 64 << 10);
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

#[tokio::test]
async fn many_values_come_newest_first_over_few_streams() {
    let (from, to) = (Node::new(), Node::new());
    let names: Vec<ValueName> = (0..600).map(|n| from.store(&bytes(5000, n))).collect();
    let peers = Peers::of(&[&from]);
    let wishes = Wishes::of(&names);
    let _fetching = Fetching::start(&to, &peers, &wishes);
    wishes.wait_for(600).await;
    for (n, name) in (0..).zip(&names) {
        assert_eq!(to.load(name), Some(bytes(5000, n)));
    }
    // Four are fetched at a time, so each comes about when it is its turn.
    let came = wishes.came();
    for (turn, name) in came.iter().enumerate() {
        let due = names.iter().position(|n| n == name).unwrap();
        assert!(due <= turn + 3, "{due} came as {turn}");
    }
    assert!(peers.brought(0).len() <= 10, "{} streams for 600 values", peers.brought(0).len());
}

#[tokio::test]
async fn a_value_is_read_while_it_comes_through_cuts() {
    let size = 2 * SPAN + 777;
    let (from, to) = (Node::new(), Node::new());
    let name = from.store(&bytes(size, 1));
    let peers = Peers::of(&[&from]);
    peers.fates(
        0,
        [40_000, 3_000_000, 100].map(|at| Fate { cut_after: Some(at), ..Fate::default() }),
    );
    // No commit wants the value: only the readers do.
    let fetching = Fetching::start(&to, &peers, &Wishes::of(&[]));
    let value = fetching.value(name);
    let readers = (0..3).map(|_| read(&value));
    for all in futures_util::future::join_all(readers).await {
        assert!(all.unwrap() == bytes(size, 1));
    }
    let Value::File { path, .. } = value.clone().here().await.unwrap() else { panic!("a file") };
    assert!(std::fs::read(path).unwrap() == bytes(size, 1));
    // Now it is read again, from this disk.
    peers.set_down(0, true);
    assert!(read(&value).await.unwrap() == bytes(size, 1));
}

#[tokio::test]
async fn a_reader_of_a_value_that_nobody_has_is_told_and_it_comes_later() {
    let (from, empty, to) = (Node::new(), Node::new(), Node::new());
    let name = from.store(&bytes(100_000, 1));
    let peers = Peers::of(&[&empty]);
    let wishes = Wishes::of(&[name]);
    let fetching = Fetching::start(&to, &peers, &wishes);
    let value = fetching.value(name);
    let error = value.clone().here().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StoreError::Away(_)), "{text}");
    assert!(text.contains("none of the 1 nodes that can be reached has it"), "{text}");
    peers.set_down(0, true);
    let text = read(&value).await.unwrap_err().to_string();
    assert!(text.contains("no other node can be reached"), "{text}");
    assert!(value.read(1 << 20).is_err(), "and not by what cannot wait");
    peers.add(7, &from);
    fetching.0.look_again();
    wishes.wait_for(1).await;
    assert!(read(&value).await.unwrap() == bytes(100_000, 1));
}

#[tokio::test]
async fn a_reader_waits_for_a_node_that_gives_no_answer_until_it_does_or_is_gone() {
    let (from, to) = (Node::new(), Node::new());
    let name = from.store(&bytes(100_000, 1));
    let peers = Peers::of(&[&from]);
    let mute = |streams| std::iter::repeat_n(Fate { cut_after: Some(0), flip: None }, streams);
    peers.fates(0, mute(7));
    let fetching = Fetching::start(&to, &peers, &Wishes::of(&[name]));
    assert!(read(&fetching.value(name)).await.unwrap() == bytes(100_000, 1));

    let peers = Peers::of(&[&from]);
    peers.fates(0, mute(10_000));
    let fetching = Fetching::start(&to, &peers, &Wishes::of(&[]));
    let gone = async {
        while peers.brought(0).is_empty() {
            tokio::task::yield_now().await;
        }
        peers.set_down(0, true);
        fetching.0.look_again();
    };
    let value = fetching.value(ValueName { hash: [9; 32], size: 100_000 });
    let (told, ()) = tokio::join!(read(&value), gone);
    let text = told.unwrap_err().to_string();
    assert!(text.contains("no other node can be reached"), "{text}");
}

#[tokio::test]
async fn a_reader_gets_what_a_node_has_had_since_it_was_asked() {
    let (from, to) = (Node::new(), Node::new());
    let mut names: Vec<ValueName> = (0..4).map(|n| from.store(&bytes(SPAN, n))).collect();
    let late = bytes(100_000, 9);
    names.push(Node::new().store(&late));
    let peers = Peers::of(&[&from]);
    // All places are taken by values that come to nothing.
    let short = Fate { cut_after: Some(10), flip: None };
    peers.fates(0, std::iter::once(Fate::default()).chain(std::iter::repeat_n(short, 10_000)));
    let fetching = Fetching::start(&to, &peers, &Wishes::of(&names));
    let begun = async {
        while !names[..4].iter().any(|name| to.partial(name).exists()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, begun).await.expect("they are begun");
    from.store(&late);
    peers.forget();
    assert!(read(&fetching.value(names[4])).await.unwrap() == late);
}

#[tokio::test]
async fn a_node_without_peers_says_so_at_once() {
    let fetch_board = FetchBoard::new(Node::new().values.clone());
    let name = ValueName { hash: [1; 32], size: 10_000 };
    let error = fetch_board.whole(name).await.unwrap_err().to_string();
    assert!(error.contains("this node has no peers"), "{error}");
}

#[tokio::test]
async fn what_is_here_already_is_not_fetched_and_what_was_replaced_is_given_up() {
    let (from, to) = (Node::new(), Node::new());
    let here = from.store(&bytes(50_000, 1));
    to.store(&bytes(50_000, 1));
    let other = Node::new();
    let old = from.store(&bytes(3 * SPAN, 2));
    let new = other.store(&bytes(90_000, 3));
    let peers = Peers::of(&[&from, &other]);
    // The peer can be asked what it has, and no more: the old value never becomes whole.
    peers.fates(0, [Fate { cut_after: Some(10), ..Fate::default() }; 1000]);
    let wishes = Wishes::of(&[here]);
    let fetching = Fetching::start(&to, &peers, &wishes);
    wishes.wait_for(1).await;
    assert_eq!(peers.all_brought(), 0, "nobody was asked");
    wishes.missing_now().push(old);
    fetching.0.look_again();
    let begun = async {
        while !to.partial(&old).exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, begun).await.expect("it is begun");
    *wishes.missing_now() = vec![new];
    fetching.0.look_again();
    wishes.wait_for(2).await;
    assert_eq!(wishes.came(), [here, new]);
    assert_eq!(to.load(&new), Some(bytes(90_000, 3)));
}

async fn here(to: &Node, name: &ValueName, whole: &[u8]) {
    let whole = async {
        while to.values.is_damaged(name) || to.load(name).as_deref() != Some(whole) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, whole).await.expect("it is fetched again");
}

#[tokio::test]
async fn a_file_that_rots_is_found_by_its_readers_and_fetched_again() {
    let whole = bytes(SPAN + 777, 1);
    let (from, to) = (Node::new(), Node::new());
    let name = from.store(&whole);
    to.store(&whole);
    let peers = Peers::of(&[&from]);
    // No commit misses the value: the store believes that it is here.
    let fetching = Fetching::start(&to, &peers, &Wishes::of(&[]));
    let path = to.values.path(&name.hash);
    let hash = model::value::ContentHash(name.hash);
    let file = Value::File { hash, size: name.size, path: path.clone() };
    assert!(read(&file).await.unwrap() == whole);
    let mut rotten = whole.clone();
    rotten[99] ^= 4;
    for rotten in [&rotten[..], &whole[..whole.len() - 1]] {
        std::fs::write(&path, rotten).unwrap();
        let error = read(&file).await.unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        // It is read while it comes again, or after.
        fetching.0.look_again();
        assert!(read(&fetching.value(name)).await.unwrap() == whole);
        here(&to, &name, &whole).await;
        assert!(to.values.damaged().unwrap().is_empty());
    }
    // A record is read in one go, and nobody waits for it: it is fetched all the same.
    std::fs::write(&path, &rotten).unwrap();
    assert!(matches!(file.read(u64::MAX), Err(StoreError::Away(_))));
    assert!(to.values.is_damaged(&name));
    fetching.0.look_again();
    here(&to, &name, &whole).await;
}

#[tokio::test]
async fn a_value_of_which_nothing_true_is_said_is_refused_until_somebody_does() {
    use sha1::Digest;
    let whole = bytes(200_000, 1);
    let (from, to) = (Node::new(), Node::new());
    let name = from.store(&whole);
    let peers = Peers::of(&[&from]);
    let wishes = Wishes::of(&[name]);
    let liar = StatedHash { sha1: [7; 20], by: "liar".parse().unwrap(), key: "false::key".into() };
    *wishes.claims.lock().unwrap() = vec![liar.clone()];
    let fetching = Fetching::start(&to, &peers, &wishes);
    for _ in 0..3 {
        let error = fetching.value(name).here().await.unwrap_err().to_string();
        for needle in ["another SHA-1", "false::key", "liar", "set that key again"] {
            assert!(error.contains(needle), "{error}");
        }
        assert!(to.load(&name).is_none() && !to.partial(&name).exists());
    }
    let brought = peers.all_brought();
    assert!(brought < 2 * whole.len() as u64, "{brought} bytes: it came once");
    let sha1 = sha1::Sha1::digest(&whole).into();
    let honest = StatedHash { sha1, by: "honest".parse().unwrap(), key: "true::key".into() };
    *wishes.claims.lock().unwrap() = vec![liar, honest];
    fetching.0.look_again();
    wishes.wait_for(1).await;
    here(&to, &name, &whole).await;
}

#[test]
fn what_was_begun_goes_when_it_is_old_and_nobody_refers_to_it() {
    let to = Node::new();
    let young = ValueName { hash: [1; 32], size: 9000 };
    let wanted = ValueName { hash: [2; 32], size: 9000 };
    let old = ValueName { hash: [3; 32], size: 9000 };
    let whole = to.store(&bytes(9000, 1));
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3700);
    for name in [young, wanted, old, whole] {
        let (file, path) = to.values.open_partial(&name.hash).unwrap();
        assert_eq!(path, to.partial(&name));
        if name != young {
            file.set_modified(hour_ago).unwrap();
        }
    }
    let referred = |hash: &[u8; 32]| *hash == wanted.hash || *hash == whole.hash;
    assert_eq!(to.values.collect(referred).unwrap(), 2);
    let left = [young, wanted, old, whole].map(|name| to.partial(&name).exists());
    assert_eq!(left, [true, true, false, false]);
    assert!(to.load(&whole).is_some());
}
