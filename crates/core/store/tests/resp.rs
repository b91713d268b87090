//! Tests of the Redis protocol: whatever way the bytes are cut, and whatever they are.

use proptest::prelude::*;
use store_core::resp::reply::Replies;
use store_core::resp::request::{Parsed, Requests};
use store_core::resp::response::{Response, parse};
use store_core::resp::{Protocol, glob};

type Command = Vec<Vec<u8>>;

fn encode(commands: &[Command]) -> Vec<u8> {
    let mut out = Replies::default();
    for command in commands {
        out.array(command.len());
        command.iter().for_each(|argument| out.bulk(argument));
    }
    out.bytes
}

/// Feeds the pieces one after the other, as a connection would.
fn decode(pieces: &[&[u8]]) -> Vec<Command> {
    let mut requests = Requests::default();
    let mut input: Vec<u8> = Vec::new();
    let mut commands = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        while let Parsed::Command { used } = requests.parse(&input).unwrap() {
            let argument = |i| requests.argument(&input, i).unwrap().to_vec();
            commands.push((0..requests.len()).map(argument).collect());
            input.drain(..used);
        }
    }
    assert!(input.is_empty());
    commands
}

fn command() -> impl Strategy<Value = Command> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..5)
}

fn response() -> impl Strategy<Value = Response> {
    let leaf = prop_oneof![
        "[ -~]{0,9}".prop_map(Response::Simple),
        "[ -~]{0,9}".prop_map(Response::Error),
        any::<i64>().prop_map(Response::Integer),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Response::Bulk),
        Just(Response::Null),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Response::Array),
            prop::collection::vec(inner, 0..4).prop_map(Response::Push),
        ]
    })
}

fn write(replies: &mut Replies, response: &Response) {
    match response {
        Response::Simple(text) => replies.simple(text),
        Response::Error(text) => replies.error(text),
        Response::Integer(number) => replies.integer(*number),
        Response::Bulk(bytes) => replies.bulk(bytes),
        Response::Null => replies.null(),
        Response::Array(items) => {
            replies.array(items.len());
            items.iter().for_each(|item| write(replies, item));
        }
        Response::Push(items) => {
            replies.push(items.len());
            items.iter().for_each(|item| write(replies, item));
        }
    }
}

proptest! {
    #[test]
    fn commands_are_read_whatever_way_they_are_cut(
        commands in prop::collection::vec(command(), 1..4),
    ) {
        let bytes = encode(&commands);
        for cut in 0..=bytes.len() {
            prop_assert_eq!(&decode(&[&bytes[..cut], &bytes[cut..]]), &commands);
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(decode(&single), commands);
    }

    #[test]
    fn no_request_panics_and_cutting_changes_nothing(
        bytes: Vec<u8>,
        cut: prop::sample::Index,
        start in prop::sample::select(vec!["", "*", "*2\r\n$", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$"]),
    ) {
        let mut input = start.as_bytes().to_vec();
        input.extend_from_slice(&bytes);
        let whole = Requests::default().parse(&input);
        let mut requests = Requests::default();
        let front = requests.parse(&input[..cut.index(input.len() + 1)]);
        match front {
            Ok(Parsed::Incomplete) => prop_assert_eq!(requests.parse(&input), whole),
            other => prop_assert_eq!(other, whole),
        }
    }

    #[test]
    fn replies_are_read_as_they_were_written(response in response()) {
        let mut replies = Replies { protocol: Protocol::Resp3, ..Replies::default() };
        write(&mut replies, &response);
        for cut in 0..replies.bytes.len() {
            prop_assert_eq!(parse(&replies.bytes[..cut]), Ok(None));
        }
        let length = replies.bytes.len();
        replies.bytes.push(b'+');
        prop_assert_eq!(parse(&replies.bytes), Ok(Some((response, length))));
    }

    #[test]
    fn no_reply_panics(bytes: Vec<u8>, kind in prop::sample::select(b"+-:$=*%>_#".to_vec())) {
        let mut input = vec![kind];
        input.extend_from_slice(&bytes);
        let _ = parse(&input);
    }

    #[test]
    fn no_pattern_panics_and_a_text_matches_itself(pattern: Vec<u8>, text in "[a-z:]{0,9}") {
        let _ = glob::matches(&pattern, text.as_bytes());
        let _ = glob::prefix(&String::from_utf8_lossy(&pattern));
        prop_assert!(glob::matches(text.as_bytes(), text.as_bytes()));
        prop_assert!(glob::matches(b"*", text.as_bytes()));
    }
}

#[test]
fn deep_nesting_is_refused() {
    let bytes = "*1\r\n".repeat(100_000);
    assert!(parse(bytes.as_bytes()).is_err());
}
