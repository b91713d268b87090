//! Properties of the loop over commands, whoever drives it: a task and the lane reply with the
//! same bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use super::lane::{in_lanes, until};
use super::{Client, Server, encode};

const CASES: u32 = 48;
/// More turns with only ordinary commands than a new connection needs to go to the lane.
const TURNS: usize = 3;
const KEYS: &str = "k::0 k::1 k::2 other::0 local::note";

/// Commands whose replies depend on nothing but those before them.
const RARE: &[&str] = &[
    "PING",
    "ECHO hello",
    "STRLEN k::0",
    "MGET k::0 k::1",
    "MSET k::0 a k::1 b",
    "DEL k::0 k::1 k::0",
    "EXISTS k::0 k::0",
    "SET k::1 lasting EX 1000",
    "SET k::1 new GET",
    "SET k::1 never NX",
    "SET k::1",
    "GETDEL k::2",
    "EXPIRE k::2 1000",
    "SET other::0 x",
    "GET other::0",
    "MSET k::0 c other::0 d",
    "SET local::note n",
    "GET local::note",
    "GET ::",
    "KEYS k::*",
    "SUBSCRIBE channel",
    "UNSUBSCRIBE",
    "RESET",
    "AUTH nobody wrong",
    "CLIENT GETNAME",
    "CLIENT SETNAME name",
    "NOTHING here",
];

/// How a connection begins: whether it speaks the newer protocol, and whether as a user that has
/// not all rights.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    newer: bool,
    user: bool,
}

struct Driver {
    server: Server,
    token: String,
    lane: bool,
}

impl Driver {
    fn start(lane: bool) -> Driver {
        let server = Server::with_lane_from(Some(if lane { 0 } else { usize::MAX }));
        let token = server.client().text("CORTEX.USER SET web WRITE k");
        Driver { server, token, lane }
    }

    /// Returns all that a new connection is answered to bytes that come in pieces.
    fn replies(&self, beginning: Beginning, pieces: &[&[u8]]) -> Vec<u8> {
        let mut other = self.server.client();
        other.text(&format!("DEL {KEYS}"));
        let Client { stream, .. } = self.connection(beginning);
        let mut replies = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in pieces {
                    (&stream).write_all(piece).unwrap();
                    // Another client's turn comes between.
                    assert_eq!(other.text("PING"), "PONG");
                }
                stream.shutdown(Shutdown::Write).unwrap();
            });
            (&stream).read_to_end(&mut replies).expect("the end comes in time");
        });
        replies
    }

    /// Returns a new connection of which this driver has hold.
    fn connection(&self, beginning: Beginning) -> Client<TcpStream> {
        let mut client = self.server.client();
        client.stream.set_nodelay(true).unwrap();
        if beginning.newer {
            assert!(client.text("HELLO 3").contains("proto 3"));
        }
        if beginning.user {
            assert_eq!(client.text(&format!("AUTH web {}", self.token)), "OK");
        }
        for _ in 0..TURNS {
            assert_eq!(client.text("GET k::0"), "nil");
        }
        let expected = usize::from(self.lane);
        until("its driver has it", || in_lanes(&self.server) == expected);
        client
    }
}

fn key() -> impl Strategy<Value = &'static str> {
    select(KEYS.split(' ').collect::<Vec<_>>())
}

fn value() -> impl Strategy<Value = String> {
    // Some replies are longer than what is sent at once, and some values than what is held.
    let length = prop_oneof![20 => 0..20usize, 1 => 20_000..60_000usize, 1 => 65_536..70_000usize];
    (length, select(vec!["x", "y"])).prop_map(|(length, letter)| letter.repeat(length))
}

fn command() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        12 => (key(), value()).prop_map(|(key, value)| encode(&["SET", key, &value])),
        8 => key().prop_map(|key| encode(&["get", key])),
        4 => key().prop_map(|key| encode(&["DEL", key])),
        4 => select(RARE).prop_map(|line| encode(&line.split(' ').collect::<Vec<_>>())),
        1 => select(RARE).prop_map(|line| format!("{line}\r\n").into_bytes()),
        1 => select(vec!["\r\n", "*0\r\n", "*-1\r\n"]).prop_map(Vec::from),
        // A refusal counts for a second, so the end of what is refused comes along.
        1 => Just([encode(&["MULTI"]), encode(&["GET", "k::0"]), encode(&["EXEC"])].concat()),
    ]
}

/// Returns how the client ends: just so, with `QUIT`, or with what is no command. Nothing may
/// follow: bytes that the server does not read could cost replies.
fn ending() -> impl Strategy<Value = Vec<u8>> {
    let ending = vec!["", "*1\r\n$4\r\nQUIT\r\n", "*1\r\n:", "*2\r\n$3\r\nGET\r\n$1"];
    prop_oneof![3 => Just(String::new()), 1 => select(ending).prop_map(String::from)]
        .prop_map(String::into_bytes)
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Shows where two sequences of replies part.
fn difference(one: &[u8], other: &[u8]) -> String {
    let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    let from = |bytes: &[u8]| {
        let rest = &bytes[same..];
        rest[..rest.len().min(100)].escape_ascii().to_string()
    };
    format!("after {same} bytes \"{}\" and \"{}\"", from(one), from(other))
}

#[test]
fn a_task_and_the_lane_reply_with_the_same_bytes() {
    let (task, lane) = (Driver::start(false), Driver::start(true));
    let beginning = any::<(bool, bool)>().prop_map(|(newer, user)| Beginning { newer, user });
    let commands = prop::collection::vec(command(), 1..40);
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..6);
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let property = |(beginning, commands, ending, cuts): (_, Vec<Vec<u8>>, Vec<u8>, Vec<_>)| {
        let bytes = [commands.concat(), ending].concat();
        let whole = task.replies(beginning, &[&bytes]);
        for driver in [&task, &lane] {
            let cut = driver.replies(beginning, &pieces(&bytes, &cuts));
            prop_assert!(whole == cut, "lane {}: {}", driver.lane, difference(&whole, &cut));
        }
        Ok(())
    };
    runner.run(&(beginning, commands, ending(), cuts), property).unwrap();
}
