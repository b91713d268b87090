//! Resets and ends of connections: a reset of one side reaches the other as one, and an end as an
//! end.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use socket2::SockRef;

use super::world::{Talk, Two};
use crate::machine::free_port;
use crate::wait::{STATE_DEADLINE, wait_for};

fn await_ending(ip: &str, port: u16, name: &str, expected: &str) {
    let mut talk = Talk::open(ip, port).expect("a connection");
    let ending = wait_for("the instance to notice", STATE_DEADLINE, || {
        match talk.say(&format!("ending {name}")) {
            Ok(said) if said == "none" => Err(said),
            said => Ok(said),
        }
    });
    assert_eq!(ending.as_deref(), Ok(expected), "{name} by {ip}");
}

#[test]
fn a_reset_reaches_the_other_side_as_one_on_every_node() {
    let ips = ["127.0.0.87", "127.0.0.88"];
    let port = free_port();
    let _nodes = Two::start_plain(ips, port, "");
    for ip in ips {
        let open = |name: &str| {
            let mut talk = Talk::open(ip, port).expect("a connection");
            assert_eq!(talk.say(&format!("name {name}")), Ok(format!("name {name}")));
            talk
        };
        let (cut, ended) = (format!("cut-{ip}"), format!("ended-{ip}"));
        let talk = open(&cut);
        SockRef::from(talk.0.get_ref()).set_linger(Some(Duration::ZERO)).expect("an option");
        drop(talk);
        await_ending(ip, port, &cut, "a reset");
        open(&ended).finish().expect("an end in order");
        await_ending(ip, port, &ended, "an end");

        let mut talk = open("whoever");
        talk.write("reset").expect("it is said");
        let read = talk.0.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::ConnectionReset), "by {ip}");
    }
}
