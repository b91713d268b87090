//! Tests that clients that ask ordinary things go to their thread's lane, and come back from it.

use std::io::Write;
use std::net::Shutdown;
use std::time::Instant;

use super::super::LANE_FROM;
use super::{Client, DEADLINE, Server, encode, show};

/// The number of turns: more than a connection needs to go to the lane, however often it came back.
const TURNS: usize = 64;

type Tcp = Client<std::net::TcpStream>;

/// Returns how many connections are in lanes, as another client is told.
pub fn in_lanes(server: &Server) -> usize {
    let info = server.client().text("INFO clients");
    let line = info.lines().find_map(|line| line.strip_prefix("clients_in_lanes:"));
    line.expect("INFO counts them").trim().parse().unwrap()
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

/// Returns a client that is in the lane.
fn ordinary(server: &Server) -> Tcp {
    let before = in_lanes(server);
    let mut client = server.client();
    for turn in 0..TURNS {
        assert_eq!(client.text(&format!("SET turn {turn}")), "OK");
    }
    until("a client that only sets goes to the lane", || in_lanes(server) > before);
    client
}

#[test]
fn a_client_goes_to_the_lane_leaves_it_and_goes_there_again() {
    let server = Server::start();
    let mut client = ordinary(&server);
    for _ in 0..3 {
        assert_eq!(client.text("SET a 1"), "OK");
        assert_eq!(client.text("GET a"), "1");
        assert_eq!(client.text("DEL a"), "1");
        assert_eq!(client.text("DEL a"), "0");
        assert_eq!(client.text("GET a"), "nil");
        assert_eq!(client.text("MGET a turn"), format!("[nil {}]", TURNS - 1));
        until("what is no ordinary command leaves it", || in_lanes(&server) == 0);
        assert_eq!(client.text("HELLO 3").split(' ').next(), Some("[server"));
        for _ in 0..TURNS {
            assert_eq!(client.text("GET a"), "nil");
        }
        until("it comes back", || in_lanes(&server) == 1);
    }
    drop(client);
    until("it is gone", || in_lanes(&server) == 0);
}

#[test]
fn a_few_clients_need_no_lane() {
    let server = Server::with_lane_from(None);
    let ask = |client: &mut Tcp| (0..TURNS).for_each(|_| assert_eq!(client.text("GET a"), "nil"));
    let mut clients = vec![server.client()];
    ask(&mut clients[0]);
    assert_eq!(in_lanes(&server), 0);
    clients.extend((0..LANE_FROM).map(|_| server.client()));
    until("many need it", || {
        ask(&mut clients[0]);
        in_lanes(&server) > 0
    });
}

#[test]
fn a_pipeline_is_answered_in_its_order() {
    let server = Server::start();
    let mut client = ordinary(&server);
    let mut bytes = Vec::new();
    let mut expected = Vec::new();
    for n in 0..3000 {
        let (key, value) = (format!("p::{}", n % 7), n.to_string());
        match n % 5 {
            0 | 1 => {
                bytes.extend(encode(&["SET", &key, &value]));
                expected.push("OK".to_string());
            }
            2 => {
                bytes.extend(encode(&["SET", &key, &value]));
                bytes.extend(encode(&["GET", &key]));
                expected.extend(["OK".to_string(), value]);
            }
            3 => {
                bytes.extend(encode(&["DEL", "p::none"]));
                expected.push("0".to_string());
            }
            _ => {
                bytes.extend(encode(&["STRLEN", "p::none"]));
                expected.push("0".to_string());
            }
        }
    }
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(show(&client.next()), *expected, "reply {number}");
    }
    writing.join().unwrap();
}

#[test]
fn a_command_may_come_in_any_two_pieces() {
    let server = Server::start();
    let mut client = ordinary(&server);
    let command = [encode(&["SET", "cut", "here"]), encode(&["GET", "cut"])].concat();
    for at in 1..command.len() {
        client.stream.write_all(&command[..at]).unwrap();
        // Another client's turn comes between.
        assert_eq!(server.client().text("PING"), "PONG");
        client.stream.write_all(&command[at..]).unwrap();
        assert_eq!(show(&client.next()), "OK", "cut at {at}");
        assert_eq!(show(&client.next()), "here", "cut at {at}");
    }
    assert_eq!(in_lanes(&server), 1);
}

#[test]
fn half_a_command_that_went_to_the_lane_is_forgotten_with_it() {
    let server = Server::start();
    let mut client = server.client();
    let turn = encode(&["GET", "a"]);
    let (half, rest) = turn.split_at(turn.len() - 3);
    client.stream.write_all(&[&turn, half].concat()).unwrap();
    for _ in 0..TURNS {
        assert_eq!(show(&client.next()), "nil");
        client.stream.write_all(&[rest, half].concat()).unwrap();
    }
    until("it goes to the lane with half a command", || in_lanes(&server) == 1);
    client.stream.write_all(rest).unwrap();
    assert_eq!([show(&client.next()), show(&client.next())], ["nil", "nil"]);
    // This begins like the half, and has more words.
    assert_eq!(client.text("DEL a b c"), "0");
    until("what is no ordinary command leaves it", || in_lanes(&server) == 0);
    assert_eq!(client.text("PING"), "PONG");
}

#[test]
fn large_values_and_readers_that_do_not_read_leave_the_lane() {
    let server = Server::start();
    let mut client = ordinary(&server);
    let large = "x".repeat(3 << 20);
    assert_eq!(client.text(&format!("SET large {large}")), "OK");
    let mut client = ordinary(&server);
    let middle = "y".repeat(60_000);
    assert_eq!(client.text(&format!("SET middle {middle}")), "OK");
    let mut client_again = ordinary(&server);
    // This is more than the sockets hold.
    let asked = 500;
    let gets = encode(&["GET", "middle"]).repeat(asked);
    client_again.stream.write_all(&gets).unwrap();
    client_again.stream.write_all(&encode(&["SET", "after", "1"])).unwrap();
    assert_eq!(client.text("GET turn"), (TURNS - 1).to_string(), "others are served meanwhile");
    for _ in 0..asked {
        assert_eq!(show(&client_again.next()).len(), middle.len());
    }
    assert_eq!(show(&client_again.next()), "OK");
}

#[test]
fn who_ends_its_side_gets_all_answers_and_then_the_end() {
    let server = Server::start();
    let mut client = ordinary(&server);
    let sets = encode(&["SET", "end", "1"]).repeat(700);
    client.stream.write_all(&sets).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..700 {
        assert_eq!(show(&client.next()), "OK");
    }
    assert!(client.at_end());
    until("it is gone", || in_lanes(&server) == 0);
}

#[test]
fn more_writes_than_there_is_room_for_are_all_made() {
    let server = Server::start();
    let mut clients: Vec<Tcp> = (0..20).map(|_| ordinary(&server)).collect();
    for round in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            let sets: Vec<u8> = (0..200)
                .flat_map(|n| encode(&["SET", &format!("r::{number}::{n}"), &round.to_string()]))
                .collect();
            client.stream.write_all(&sets).unwrap();
        }
        for client in &mut clients {
            for _ in 0..200 {
                assert_eq!(show(&client.next()), "OK");
            }
        }
    }
    assert_eq!(clients[0].text("GET r::19::199"), "4");
}

#[test]
fn rights_count_in_the_lane_too() {
    let server = Server::start();
    let mut local = server.client();
    let token = local.text("CORTEX.USER SET web WRITE app::web");
    let mut client = server.client();
    assert_eq!(client.text(&format!("AUTH web {token}")), "OK");
    for _ in 0..TURNS {
        assert_eq!(client.text("SET app::web::a 1"), "OK");
    }
    until("it goes to the lane", || in_lanes(&server) == 1);
    assert!(client.text("SET other 1").starts_with("-NOPERM"));
    assert!(client.text("GET other").starts_with("-NOPERM"));
    for _ in 0..TURNS {
        assert_eq!(client.text("GET app::web::a"), "1");
    }
    until("it goes to the lane", || in_lanes(&server) == 1);
    assert_eq!(local.text("CORTEX.USER DEL web"), "1");
    let began = Instant::now();
    while !client.text("GET app::web::a").starts_with("-NOPERM") {
        assert!(began.elapsed() < DEADLINE, "a removed user is out");
    }
}
