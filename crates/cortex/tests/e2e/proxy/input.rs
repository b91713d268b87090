//! Options that make no sense are refused, each with what to do instead.

use std::process::Command;

use super::world::Proxy;
use crate::node::{binary, run};

#[test]
fn wrong_options_are_refused_with_what_to_do() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["--to", "1"], &["--listen 127.0.0.1:8080"]),
        (&["--listen", "0"], &["--to 127.0.0.1:3001"]),
        (&["--listen", "nowhere", "--to", "1"], &["nowhere", "HOST:PORT"]),
        (&["--listen", "127.0.0.1:70000", "--to", "1"], &["70000", "1 to 65535"]),
        (&["--listen", "192.0.2.1:1", "--to", "1"], &["192.0.2.1", "choose another port"]),
        (&["--listen", "0", "--to", "1,,2"], &["--to", "HOST:PORT"]),
        (&["--listen", "0", "--to", "1,1"], &["named twice"]),
        (&["--listen", "0", "--to", "0"], &["port 0 cannot be connected to"]),
        (&["--listen", "0", "--to", "ftp=1"], &["ftp", "tls:NAME", "other"]),
        (&["--listen", "0", "--to", "tls=1", "--to", "2"], &["other="]),
        (&["--listen", "0", "--to", "tls=1,http=2"], &["--to tls=3001 --to http=3002"]),
        (&["--listen", "0", "--to", "tls=1", "--mode", "http"], &["--mode tcp"]),
        (&["--listen", "0", "--to", "1", "--strategy", "dice"], &["dice", "round-robin"]),
        (&["--listen", "0", "--to", "1", "--mode", "quic"], &["quic", "http", "tcp", "udp"]),
        (&["--listen", "0", "--to", "1", "--concurrency", "0"], &["--concurrency", "0"]),
        (&["--listen", "0", "--to", "1", "--threads", "0"], &["--threads", "0"]),
        (&["--listen", "0", "--to", "1", "--health", "up"], &["--health /up"]),
        (&["--listen", "0", "--to", "1", "--health", "tcp", "--mode", "udp"], &["leave it out"]),
        (&["--listen", "0", "--to", "1", "--health-interval", "0"], &["0.05"]),
        (&["--listen", "0", "--to", "1", "--idle", "5"], &["--mode tcp"]),
        (&["--listen", "0", "--to", "1", "--accept-proxy", "--mode", "udp"], &["http and tcp"]),
        (&["--listen", "0", "--to", "1", "--accept-proxy=10.0.0.0/33"], &["10.1.0.0/16", "any"]),
        (&["--listen", "0", "--to", "1", "--tls-cert", "a"], &["needs its key"]),
        (
            &["--listen", "0", "--to", "1", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"],
            &["/nowhere"],
        ),
        (
            &["--listen", "0", "--to", "1", "--mode", "tcp", "--tls-cert", "a", "--tls-key", "b"],
            &["--mode http"],
        ),
        (&["--listen", "0", "--to", "1", "--send-proxy", "v3"], &["v1", "v2"]),
        (&["--listen", "0", "--to", "1", "--send-proxy", "v2"], &["--forwarded"]),
        (&["--listen", "0", "--to", "1", "--mode", "tcp", "--forwarded"], &["--send-proxy"]),
        (&["--listen", "0", "--to", "1", "--records", "/nowhere/file"], &["choose another file"]),
        (&["--listen", "0", "--to", "1", "--control", "/nowhere/s"], &["name another path"]),
        (&["--listen", "0", "--to", "1", "--control", "/dev/null"], &["no socket"]),
        (&["--listen", "1", "--take-over"], &["no proxy listens", "--control"]),
        (&["back-ends", "list"], &["no proxy of yours", "cortex proxy"]),
        (&["back-ends", "list", "--listen", "127.0.0.1:1"], &["no proxy listens"]),
        (&["back-ends", "add", "x"], &["HOST:PORT"]),
        (&["back-ends", "weight", "1", "101"], &["100"]),
    ];
    let place = tempfile::tempdir().unwrap();
    for (arguments, needles) in cases {
        let mut command = Command::new(binary());
        command.arg("proxy").args(*arguments).env("XDG_RUNTIME_DIR", place.path());
        run(command, &format!("cortex proxy {arguments:?}")).refused().saying(needles);
    }
}

#[test]
fn a_running_proxy_refuses_what_it_cannot_do() {
    let proxy = Proxy::start(&["--to", "127.0.0.1:1"]);
    proxy.try_change(&["add", "127.0.0.1:1"]).refused().saying(&["a back end already", "weight"]);
    proxy.try_change(&["remove", "127.0.0.1:2"]).refused().saying(&["127.0.0.1:1"]);
    let mut second = Command::new(binary());
    let address = proxy.address().to_string();
    second.args(["proxy", "--to", "1", "--listen", &address]);
    second.env("XDG_RUNTIME_DIR", proxy.place.path());
    run(second, "a second one").refused().saying(&["another program listens there"]);
}
