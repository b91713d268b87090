//! Tests of the spaces of applications: unmodified clients, each with names of its own choice.

use std::net::TcpStream;

use model::ApplicationName;
use store::INLINE_VALUE_MAX;
use store_core::resp::response::Response;

use super::{Client, Server, show};
use crate::space::KEYS_MAX;

/// Knows the token `NAME.token` of every application.
pub fn application_of(token: &str) -> Option<ApplicationName> {
    token.strip_suffix(".token")?.parse().ok()
}

impl Server {
    fn application(&self, name: &str) -> Client<TcpStream> {
        let mut client = self.stranger();
        assert_eq!(client.text(&format!("AUTH {name} {name}.token")), "OK");
        client
    }

    /// Returns a connection that has not said whose it is.
    fn stranger(&self) -> Client<TcpStream> {
        Server::client_at(self.listener.applications.unwrap())
    }
}

#[test]
fn a_token_is_asked_for_and_says_whose_the_connection_is() {
    let server = Server::start();
    let mut client = server.stranger();
    assert!(client.text("GET a").starts_with("-NOAUTH"));
    assert!(client.text("SUBSCRIBE a").starts_with("-NOAUTH"));
    assert!(client.text("AUTH blog wrong").contains("use the address in $CORTEX_BUS_URL"));
    // Some clients send no user, others one that they made up.
    assert_eq!(client.text("AUTH blog.token"), "OK");
    assert_eq!(client.text("SET a 1"), "OK");
    let mut other = server.stranger();
    assert!(other.text("HELLO 3 AUTH default blog.token SETNAME cable").contains("proto 3"));
    assert_eq!(other.text("GET a"), "1");
    assert_eq!(other.text("CLIENT GETNAME"), "cable");
    // A connection that starts anew has to say it again.
    assert_eq!(other.text("RESET"), "RESET");
    assert!(other.text("GET a").starts_with("-NOAUTH"));
    // Nor does the token open another door.
    assert!(server.client().text("AUTH blog.token").starts_with("-WRONGPASS"));
}

#[test]
fn applications_use_the_same_names_without_meeting() {
    let server = Server::start();
    let (mut blog, mut shop) = (server.application("blog"), server.application("shop"));
    for name in ["a", "app::shop::spec", "x:y::", "%", "caf\u{e9}"] {
        assert_eq!(blog.text(&format!("SET {name} of-blog")), "OK", "{name}");
        assert_eq!(shop.text(&format!("GET {name}")), "nil", "{name}");
        assert_eq!(blog.text(&format!("GET {name}")), "of-blog", "{name}");
    }
    assert_eq!(shop.text("SET a of-shop"), "OK");
    assert_eq!(blog.text("MGET a b"), "[of-blog nil]");
    assert_eq!(blog.text("DBSIZE"), "5");
    assert_eq!(shop.text("KEYS *"), "[a]");
    assert_eq!(blog.text("KEYS app*"), "[app::shop::spec]");
    let all = blog.text("SCAN 0 COUNT 100");
    assert!(all.contains("x:y::") && all.contains("caf\u{e9}"), "{all}");
    assert_eq!(blog.text("DEL a"), "1");
    assert_eq!(shop.text("GET a"), "of-shop");
    // What the platform keeps is out of reach, and seen from there it has a place of its own.
    assert_eq!(server.client().text("GET bus::shop::0::.a"), "of-shop");
    for command in ["CORTEX.PREFIX app", "CORTEX.USER LIST", "CORTEX.WATCH app", "CONFIG GET save"]
    {
        assert!(blog.text(command).starts_with("-NOPERM"), "{command}");
    }
    let (clients, info) = (blog.text("CLIENT LIST"), blog.text("INFO"));
    assert!(clients.contains("user=blog") && !clients.contains("user=shop"), "{clients}");
    assert!(info.contains("redis_version:7") && !info.contains("connected_clients"), "{info}");
}

#[test]
fn databases_have_keys_of_their_own_and_channels_in_common() {
    let server = Server::start();
    let (mut one, mut two) = (server.application("blog"), server.application("blog"));
    assert_eq!(one.text("SET a zero"), "OK");
    assert_eq!(two.text("SELECT 1"), "OK");
    assert_eq!(two.text("GET a"), "nil");
    assert_eq!(two.text("SET a one"), "OK");
    assert_eq!(one.text("GET a"), "zero");
    assert!(one.text("SELECT 16").contains("out of range"));
    two.text("SUBSCRIBE c");
    assert_eq!(one.text("PUBLISH c x"), "1");
    assert_eq!(show(&two.next()), "[message c x]");
}

#[test]
fn messages_stay_within_an_application() {
    let server = Server::start();
    let (mut blog, mut shop) = (server.application("blog"), server.application("shop"));
    let mut sender = server.application("blog");
    assert_eq!(blog.text("SUBSCRIBE chat:1"), "[subscribe chat:1 1]");
    assert_eq!(blog.text("PSUBSCRIBE *"), "[psubscribe * 2]");
    assert_eq!(shop.text("PSUBSCRIBE *"), "[psubscribe * 1]");
    assert_eq!(sender.text("PUBLISH chat:1 hello"), "2");
    assert_eq!(show(&blog.next()), "[message chat:1 hello]");
    assert_eq!(show(&blog.next()), "[pmessage * chat:1 hello]");
    assert_eq!(sender.text("PUBSUB CHANNELS"), "[chat:1]");
    assert_eq!(sender.text("PUBSUB NUMSUB chat:1 none"), "[chat:1 1 none 0]");
    assert_eq!(sender.text("PUBSUB NUMPAT"), "1");
    assert_eq!(server.application("shop").text("PUBSUB CHANNELS"), "[]");
    assert_eq!(server.application("shop").text("PUBLISH chat:1 theirs"), "1");
    assert_eq!(show(&shop.next()), "[pmessage * chat:1 theirs]");
    // Changes of the platform's own keys are told to nobody here.
    shop.text("PSUBSCRIBE __key*");
    server.client().text("SET app::x 1");
    assert_eq!(sender.text("PUBLISH last x"), "1");
    assert_eq!(show(&blog.next()), "[pmessage * last x]");
    assert_eq!(blog.text("UNSUBSCRIBE"), "[unsubscribe chat:1 1]");
    assert_eq!(blog.text("PUNSUBSCRIBE"), "[punsubscribe * 0]");
    assert_eq!(shop.text("PING"), "[pong ]");
}

#[test]
fn one_script_is_known_that_sends_to_several_channels() {
    let server = Server::start();
    let (mut listener, mut sender) = (server.application("blog"), server.application("blog"));
    listener.text("SUBSCRIBE a");
    listener.text("SUBSCRIBE b");
    let script = "for i = 2, #ARGV do\n  redis.call('publish', ARGV[i], ARGV[1])\nend";
    sender.send(&["EVAL", script, "0", "{}", "a", "b"]);
    assert_eq!(sender.next(), Response::Null);
    assert_eq!(show(&listener.next()), "[message a {}]");
    assert_eq!(show(&listener.next()), "[message b {}]");
    sender.send(&["EVAL", "return redis.call('keys', '*')", "0"]);
    assert!(show(&sender.next()).starts_with("-ERR EVAL is refused"));
}

#[test]
fn the_space_of_an_application_is_bounded() {
    let server = Server::start();
    let mut client = server.application("blog");
    let large = "x".repeat(INLINE_VALUE_MAX + 1);
    assert!(client.text(&format!("SET large {large}")).contains("on the bus has at most"));
    assert_eq!(client.text("PING"), "PONG");
    for first in (0..KEYS_MAX).step_by(500) {
        let pairs: Vec<String> = (first..first + 500).map(|n| format!("{n} v")).collect();
        assert_eq!(client.text(&format!("MSET {}", pairs.join(" "))), "OK");
    }
    let refused = client.text("SET more 1");
    assert!(refused.contains("at most 10000 keys"), "{refused}");
    assert_eq!(client.text("SET 7 changed"), "OK");
    assert_eq!(server.application("shop").text("SET more 1"), "OK");
    assert_eq!(client.text("DEL 1"), "1");
    let deadline = std::time::Instant::now() + super::DEADLINE;
    while client.text("SET more 1") != "OK" {
        assert!(std::time::Instant::now() < deadline, "a deleted key leaves room");
    }
}
