//! Scarce resources: descriptors, memory, and back ends that are there. Clients are told, and back
//! ends are blamed for their own faults alone.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream, UdpSocket};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::machine::free_port;
use crate::wait::wait_until;

use super::datagrams;
use super::world::{LIMIT, Named, Proxy, read_to_end};

/// Allows the proxy to open so many more files from now on.
fn allow_more(proxy: &Proxy, more: usize) {
    let entries = fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let open: BTreeSet<u64> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    // The limit is on numbers, and those in between are free.
    let last = (0..).filter(|number| !open.contains(number)).nth(more).unwrap();
    let pid = Pid::from_raw(i32::try_from(proxy.pid()).unwrap());
    let limit = Rlimit { current: Some(last), maximum: Some(4096) };
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

fn ask(proxy: &Proxy) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(proxy.address())?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    stream.shutdown(Shutdown::Write)?;
    let answer = read_to_end(&stream)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn out_of_descriptors_clients_are_told_and_back_ends_are_not_left_alone() {
    let server = Named::start("alpha");
    for mode in ["http", "tcp"] {
        let proxy = Proxy::start(&["--mode", mode, "--threads", "1", "--to", &server.to()]);
        // There is one for the client, and none for its back end.
        allow_more(&proxy, 1);
        for _ in 0..3 {
            match ask(&proxy) {
                Ok(answer) if mode == "http" => {
                    assert!(answer.contains("X-Cortex-Error: router-short"), "{answer}");
                    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
                }
                answer => assert!(mode == "tcp" && answer.is_err(), "{mode}: {answer:?}"),
            }
        }
        let left_alone = proxy.change(&[]);
        assert_eq!(left_alone[0]["ejected"], false, "{left_alone:?}");
        allow_more(&proxy, 100);
        assert!(ask(&proxy).unwrap().ends_with("alpha"));
    }
    assert_eq!(server.count(), 2);
}

#[test]
fn out_of_descriptors_new_flows_of_datagrams_are_lost_and_back_ends_are_not_blamed() {
    let to = ["alpha", "beta"].map(|name| datagrams::echo(name, 0).to_string()).join(",");
    let options = ["--mode", "udp", "--threads", "1", "--strategy", "round-robin", "--to", &to];
    let proxy = Proxy::start(&options);
    let old = datagrams::client(&proxy);
    let of = datagrams::ask(&old, "before");
    allow_more(&proxy, 0);
    let new: Vec<UdpSocket> = (0..4).map(|_| datagrams::client(&proxy)).collect();
    for one in &new {
        one.send(b"lost").unwrap();
    }
    // The datagram comes after the lost ones, and its answer speaks well only of its own back end.
    assert_eq!(datagrams::ask(&old, "meanwhile"), of.replace("before", "meanwhile"));
    // The descriptors are for the command that asks the proxy what it thinks of its back ends.
    allow_more(&proxy, 100);
    let told = proxy.change(&[]);
    assert!(told.iter().all(|one| one["ejected"] == false), "{told:?}");
    for one in &new {
        assert!(datagrams::ask(one, "again").ends_with(" again"));
    }
}

#[test]
fn without_a_back_end_clients_are_told_and_served_again_once_there_is_one() {
    let (first, second) = (free_port(), free_port());
    let proxy = Proxy::start(&["--to", &format!("{first},{second}")]);
    let answer = ask(&proxy).unwrap();
    assert!(answer.contains("X-Cortex-Error: no-back-end\r\n"), "{answer}");
    assert!(answer.contains("Retry-After: "), "{answer}");
    let server = Named::start("alpha");
    proxy.change(&["add", &server.to()]);
    assert!(ask(&proxy).unwrap().ends_with("alpha"));
}

/// Returns the kilobytes of the proxy's code that are resident.
fn code_kb(proxy: &Proxy) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", proxy.pid())).unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.contains(" r-xp "));
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn code_that_only_the_start_needed_is_let_go() {
    let server = Named::start("alpha");
    let proxy = Proxy::start(&["--to", &server.to()]);
    assert!(ask(&proxy).unwrap().ends_with("alpha"));
    let before = code_kb(&proxy);
    wait_until("less of the code is held", || code_kb(&proxy) < before * 3 / 4);
    assert!(ask(&proxy).unwrap().ends_with("alpha"));
}
