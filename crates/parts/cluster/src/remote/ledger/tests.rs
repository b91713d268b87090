//! Tests of requests that are sent, lost and sent again, and of callers that wait too long.

use super::super::wire::FromStore;
use super::*;

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn set(key: &str, only_over: bool) -> StoreRequest {
    let place = serde_json::from_str(r#"{"stamp":1,"node":"n"}"#).unwrap();
    let only_over = only_over.then_some(place);
    StoreRequest::Set { key: key.parse().unwrap(), expires: None, only_over }
}

type Out = mpsc::UnboundedReceiver<Bytes>;

fn connect(ledger: &Ledger, node: &str) -> Out {
    let (sender, out) = mpsc::unbounded_channel();
    ledger.connect(id(node), sender, None);
    out
}

/// Returns what was sent over a connection: the ids of requests, and their values.
async fn asked(out: &mut Out) -> Vec<(u64, Bytes)> {
    let mut asked = Vec::new();
    while let Ok(frame) = out.try_recv() {
        let (head, value) = wire::read::<ToStore>(&mut &frame[..]).await.unwrap();
        if let ToStore::Ask { id, .. } = head {
            asked.push((id, value));
        }
    }
    asked
}

fn written(ledger: &Ledger, id: u64) {
    let part = AnswerPart::Written(Some("00".into()));
    let answer = FromStore::Answer { id, part, last: true };
    let FromStore::Answer { id, part, last } = answer else { unreachable!() };
    assert!(ledger.answered(id, part, Bytes::new(), last));
}

#[tokio::test]
async fn what_waits_goes_to_the_next_node_in_order_and_conditions_do_not() {
    let ledger = Ledger::new(id("me"));
    let first = ledger.ask(set("a", false), "1".into()).unwrap();
    let mut out = connect(&ledger, "a");
    let mut conditional = ledger.ask(set("c", true), "2".into()).unwrap();
    let second = ledger.ask(set("a", false), "3".into()).unwrap();
    assert_eq!(asked(&mut out).await.len(), 3);
    ledger.disconnect();
    let lost = conditional.try_recv().unwrap().unwrap_err();
    assert!(lost.to_string().contains("may or may not"), "{lost}");
    let unsent = ledger.ask(set("c", true), "4".into()).unwrap();
    let mut out = connect(&ledger, "b");
    let values: Vec<Bytes> = asked(&mut out).await.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["1", "3", "4"]);
    [1, 3, 4].into_iter().for_each(|id| written(&ledger, id));
    for answer in [first, second, unsent] {
        assert!(matches!(&answer.await.unwrap().unwrap()[..], [(AnswerPart::Written(Some(_)), _)]));
    }
    assert_eq!(ledger.state().pending_bytes, 0);
}

#[tokio::test]
async fn own_records_are_told_to_the_next_node_first() {
    let ledger = Ledger::new(id("me"));
    let _out = connect(&ledger, "a");
    let _claim = ledger.ask(set("instance::a::web::1::me", false), "starting".into()).unwrap();
    let _again = ledger.ask(set("instance::a::web::1::me", false), "ready".into()).unwrap();
    let _other = ledger.ask(set("app::a::spec", false), "spec".into()).unwrap();
    [1, 2, 3].into_iter().for_each(|id| written(&ledger, id));
    // The same node knows them already.
    ledger.disconnect();
    assert_eq!(asked(&mut connect(&ledger, "a")).await, []);
    ledger.disconnect();
    let _waits = ledger.ask(set("x", false), "later".into()).unwrap();
    let said = asked(&mut connect(&ledger, "b")).await;
    assert_eq!(said, [(0, "ready".into()), (4, "later".into())]);
    written(&ledger, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_too_long_is_told_and_a_stalled_disk_is_noticed() {
    let ledger = Ledger::new(id("me"));
    let waits = ledger.ask(StoreRequest::Head, Bytes::new()).unwrap();
    ledger.set_trouble("n1: refused".into());
    assert_eq!(ledger.look(), None);
    tokio::time::advance(WITHOUT_MAX).await;
    assert_eq!(ledger.look(), None);
    let error = waits.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("n1: refused"), "{error}");
    let _out = connect(&ledger, "a");
    let _read = ledger.ask(StoreRequest::Head, Bytes::new()).unwrap();
    tokio::time::advance(WRITE_MAX).await;
    assert_eq!(ledger.look(), None, "reading a lot may take long");
    let _write = ledger.ask(set("k", false), Bytes::new()).unwrap();
    tokio::time::advance(WRITE_MAX).await;
    assert_eq!(ledger.look(), Some(id("a")));
}

#[tokio::test]
async fn what_is_asked_is_bounded() {
    let ledger = Ledger::new(id("me"));
    let _waiting: Vec<_> =
        (0..PENDING_MAX).map(|_| ledger.ask(StoreRequest::Head, Bytes::new()).unwrap()).collect();
    assert!(matches!(ledger.ask(StoreRequest::Head, Bytes::new()), Err(StoreError::Refused(_))));
    ledger.close();
    assert!(matches!(ledger.ask(StoreRequest::Head, Bytes::new()), Err(StoreError::Stopped(_))));
}
