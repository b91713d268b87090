//! Tests of values, keys and ends, of what is refused, and of bytes that are no commands.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::{Client, DEADLINE, Server, encode, show};

#[test]
fn values_are_set_and_read() {
    let server = Server::start();
    let mut client = server.client();
    for (line, reply) in [
        ("PING", "PONG"),
        ("ping hello", "hello"),
        ("ECHO hello", "hello"),
        ("GET a::b", "nil"),
        ("SET a::b 1", "OK"),
        ("GET a::b", "1"),
        ("SET a::b 2 GET", "1"),
        ("STRLEN a::b", "1"),
        ("TYPE a::b", "string"),
        ("TYPE none", "none"),
        ("MSET x 1 y 2", "OK"),
        ("MGET x none y", "[1 nil 2]"),
        ("EXISTS x y none x", "3"),
        ("DBSIZE", "3"),
        ("DEL x none y", "2"),
        ("UNLINK x", "0"),
        ("GETDEL a::b", "2"),
        ("GETDEL a::b", "nil"),
        ("CORTEX.HASH none", "nil"),
        ("SELECT 0", "OK"),
        ("WAIT 0 1", "0"),
        ("CONFIG GET save", "[save ]"),
        ("COMMAND INFO get none", "[[get 2 [readonly] 1 1 1] nil]"),
        ("CLIENT SETNAME web", "OK"),
        ("CLIENT GETNAME", "web"),
        ("CLIENT SETINFO lib-name test", "OK"),
        ("CLIENT NO-EVICT on", "OK"),
        ("RESET", "RESET"),
    ] {
        assert_eq!(client.text(line), reply, "{line}");
    }
    assert!(client.text("CLIENT LIST").contains("lib-name=test"));
    assert!(client.text("INFO").contains("cortex_version:"));
    assert_eq!(client.text("QUIT"), "OK");
    assert!(client.at_end());
}

#[test]
fn what_would_need_agreement_is_refused_with_the_reason() {
    let server = Server::start();
    let mut client = server.client();
    for (line, reason) in [
        ("SETNX a 1", "locks"),
        ("SET a 1 NX", "locks"),
        ("SET a 1 EX 10 XX", "locks"),
        ("INCR a", "sum would be lost"),
        ("MULTI", "several of them"),
        ("SET a 1", "EXECABORT"),
        ("EXEC", "several of them"),
        ("WATCH a", "locks"),
        ("EVAL x 0", "several of them"),
        ("LPUSH a 1", "strings of bytes"),
        ("APPEND a 1", "last writer"),
        ("FLUSHALL", "every node"),
        ("NOTHING", "unknown command"),
        ("GET", "wrong number of arguments"),
        ("GET a b", "wrong number of arguments"),
        ("SET a", "wrong number of arguments"),
        ("SET a 1 EX", "syntax error"),
        ("SET a 1 EX 0", "invalid expire time"),
        ("SET a 1 EX x", "not an integer"),
        ("SET a 1 EX 9223372036854775807", "invalid expire time"),
        ("SET a 1 EX 1 KEEPTTL", "syntax error"),
        ("GET a::", "must not be empty"),
        ("SELECT 1", "database 0"),
        ("HELLO 4", "NOPROTO"),
        ("SCAN x", "invalid cursor"),
        ("SCAN 77", "not known any more"),
        ("CORTEX.WATCH a b", "incarnation:arrival"),
    ] {
        let reply = client.text(line);
        assert!(reply.starts_with('-') && reply.contains(reason), "{line}: {reply}");
    }
    let long = "k".repeat(1025);
    assert!(client.text(&format!("SET {long} 1")).contains("at most 1024"));
    assert_eq!(client.text("DBSIZE"), "0");
}

#[test]
fn pipelines_are_answered_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for i in 0..500 {
        let (key, value) = (format!("k::{}", i % 7), i.to_string());
        bytes.extend(encode(&["SET", &key, &value]));
        expected.push("OK".to_string());
        match i % 5 {
            0 => {
                bytes.extend(encode(&["GET", &key]));
                expected.push(value);
            }
            1 => {
                bytes.extend(encode(&["DEL", &key, "none"]));
                expected.push("1".into());
            }
            2 => {
                bytes.extend(encode(&["SET", "bad::", "1"]));
                expected.push("-".into());
            }
            _ => {}
        }
    }
    let mut writer = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    for (i, expected) in expected.iter().enumerate() {
        let reply = show(&client.next());
        let fits = if expected == "-" { reply.starts_with('-') } else { reply == *expected };
        assert!(fits, "reply {i}: {reply} instead of {expected}");
    }
    sending.join().unwrap();
}

#[test]
fn values_end() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.text("SET a 1 PX 60"), "OK");
    assert_eq!(client.text("SET b 1 EX 100"), "OK");
    let ttl: i64 = client.text("TTL b").parse().unwrap();
    assert!((90..=100).contains(&ttl), "{ttl}");
    assert_eq!(client.text("SET b 2 KEEPTTL"), "OK");
    assert!(client.text("PTTL b").parse::<i64>().unwrap() > 60_000);
    assert_eq!(client.text("SET b 3"), "OK");
    assert_eq!(client.text("TTL b"), "-1");
    assert_eq!(client.text("EXPIREAT b 33177117420"), "1");
    assert_eq!(client.text("EXPIRETIME b"), "33177117420");
    assert_eq!(client.text("PERSIST b"), "1");
    assert_eq!(client.text("PERSIST b"), "0");
    assert_eq!(client.text("EXPIRE none 10"), "0");
    assert_eq!(client.text("EXPIRE b -1"), "1");
    assert_eq!(client.text("TTL b"), "-2");
    let started = std::time::Instant::now();
    while client.text("GET a") != "nil" {
        assert!(started.elapsed() < DEADLINE, "it ends");
    }
    assert_eq!(client.text("DBSIZE"), "0");
}

#[test]
fn scans_page_through_every_key_over_any_connection() {
    let server = Server::start();
    let mut client = server.client();
    for i in 0..57 {
        assert_eq!(client.text(&format!("SET a::k{i:02} 1")), "OK");
        assert_eq!(client.text(&format!("SET b::k{i:02} 1")), "OK");
    }
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_string();
    loop {
        let mut other = server.client();
        let reply = show(&other.ask(&format!("SCAN {cursor} MATCH a::* COUNT 8")));
        let inner = reply.trim_matches(|c| c == '[' || c == ']').replace('[', "");
        let mut words = inner.split(' ').filter(|word| !word.is_empty());
        cursor = words.next().unwrap().to_string();
        for key in words {
            assert!(found.insert(key.to_string()), "{key} comes once");
        }
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 57);
    assert!(found.iter().all(|key| key.starts_with("a::")));
    assert_eq!(client.text("KEYS a::k0?").split(' ').count(), 10);
    assert_eq!(client.text("KEYS nothing::*"), "[]");
    assert_eq!(client.text("CORTEX.PREFIX a::k00"), "[a::k00 1]");
}

#[test]
fn large_values_are_streamed_both_ways_whatever_stands_around_them() {
    let server = Server::start();
    let mut client = server.client();
    let value: Vec<u8> = (0..1_500_000u32).map(|i| (i.wrapping_mul(7919) >> 3) as u8).collect();
    let mut bytes = encode(&["SET", "before", "1"]);
    for (key, options) in [("large", vec![]), ("ends", vec!["EX", "100"]), ("bad::", vec![])] {
        bytes.extend(format!("*{}\r\n$3\r\nSET\r\n", 3 + options.len()).as_bytes());
        bytes.extend(format!("${}\r\n{key}\r\n${}\r\n", key.len(), value.len()).as_bytes());
        bytes.extend(&value);
        bytes.extend(b"\r\n");
        options.iter().for_each(|o| bytes.extend(format!("${}\r\n{o}\r\n", o.len()).as_bytes()));
    }
    bytes.extend(encode(&["STRLEN", "large"]));
    bytes.extend(encode(&["GET", "large"]));
    bytes.extend(encode(&["GET", "before"]));
    let mut writer = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    assert_eq!(show(&client.next()), "OK");
    assert_eq!(show(&client.next()), "OK");
    assert_eq!(show(&client.next()), "OK");
    assert!(show(&client.next()).contains("must not be empty"));
    assert_eq!(show(&client.next()), "1500000");
    assert!(client.next() == store_core::resp::response::Response::Bulk(value));
    assert_eq!(show(&client.next()), "1");
    sending.join().unwrap();
    assert!(client.text("TTL ends").parse::<i64>().unwrap() > 50);
    assert_eq!(client.text("CORTEX.HASH large").len(), 40);
}

#[test]
fn bytes_that_are_no_commands_end_the_connection_and_nothing_else() {
    let server = Server::start();
    let mut good = server.client();
    assert_eq!(good.text("SET a 1"), "OK");
    for hostile in [
        &b"*1\r\n:1\r\n"[..],
        b"*99999999\r\n",
        b"*1\r\n$-5\r\n",
        b"*1\r\n$99999999\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$9223372036854775807\r\n",
        b"POST / HTTP/1.1\r\n",
        b"SET 'a\r\n",
        &[b'x'; 70_000],
    ] {
        let mut client = server.client();
        client.stream.write_all(hostile).unwrap();
        let mut said = Vec::new();
        // The rest of what was sent may make the kernel end the connection harshly.
        let _ = client.stream.read_to_end(&mut said);
        assert!(said.is_empty() || said.starts_with(b"-ERR "), "{}", said.escape_ascii());
    }
    // This is half a command, after which the client is gone.
    let mut client = server.client();
    client.stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$100000\r\nxyz").unwrap();
    drop(client);
    assert_eq!(good.text("GET a"), "1");
    assert_eq!(good.text("EXISTS b"), "0");
}

#[test]
fn a_unix_socket_and_typed_lines_serve_as_well() {
    let server = Server::start();
    let stream = UnixStream::connect(server.directory.path().join("socket")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut client = Client { stream, input: Vec::new() };
    client.stream.write_all(b"set a 'two words'\r\n\r\nget a\r\n").unwrap();
    assert_eq!(show(&client.next()), "OK");
    assert_eq!(show(&client.next()), "two words");
}

#[test]
fn the_store_ending_is_told_and_not_waited_for() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.text("SET a 1"), "OK");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(server.store.close()).unwrap();
    assert!(client.text("SET a 2").starts_with("-ERR the store has stopped"));
    assert_eq!(client.text("GET a"), "1");
    server.listener.stop();
    assert!(client.at_end());
}
