//! The check whether the process that was started stays. One that becomes a daemon leaves its port
//! to a child and ends, and the child may have answered before that.

use std::io;
use std::time::{Duration, Instant};

use model::instance::ProcessIdentity;
use model::port::Transport;

use super::{LOOK_FIRST, WantedPort};
use os::observe::Listeners;
use os::observe::process::is_alive;

/// The time that a process must live on if it does not hold its ports itself: an interpreter that
/// forked needs this long to end on a busy machine. A server behind npm or a shell is held up for
/// as long.
const STAYS: Duration = Duration::from_millis(500);

/// Waits to see whether a process stays; false once it has ended. A process that holds its ports
/// itself, alone or with its children, is not waited for.
pub async fn stays(process: &ProcessIdentity, wanted: &[WantedPort]) -> io::Result<bool> {
    let (pid, all) = (process.pid, wanted.to_vec());
    if runtime::task::spawn_blocking(move || holds(pid, &all)).await?? {
        return Ok(is_alive(process));
    }
    let began = Instant::now();
    while is_alive(process) {
        if began.elapsed() >= STAYS {
            return Ok(true);
        }
        tokio::time::sleep(LOOK_FIRST).await;
    }
    Ok(false)
}

/// Whether a process holds all its ports itself. Blocking.
fn holds(pid: u32, wanted: &[WantedPort]) -> io::Result<bool> {
    for transport in [Transport::Tcp, Transport::Udp] {
        let of_it: Vec<u16> =
            wanted.iter().filter(|one| one.transport() == transport).map(|one| one.port).collect();
        if of_it.is_empty() {
            continue;
        }
        let addresses = Listeners::take(transport)?.of_process(pid);
        if !of_it.iter().all(|port| addresses.iter().any(|address| address.port() == *port)) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use os::observe::process::identity;
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    #[tokio::test]
    async fn a_process_that_holds_its_port_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = WantedPort { port: listener.local_addr().unwrap().port(), id: None };
        let own = identity(std::process::id()).unwrap();
        assert!(holds(own.pid, &[wanted]).unwrap());
        assert!(stays(&own, &[wanted]).await.unwrap());
        let other = WantedPort { port: 1, id: None };
        assert!(!holds(own.pid, &[wanted, other]).unwrap());
    }

    #[tokio::test]
    async fn a_process_that_leaves_its_port_to_another_does_not_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = [WantedPort { port: listener.local_addr().unwrap().port(), id: None }];
        let start = |program: &str| {
            Command::new("sleep").arg(program).stdin(Stdio::null()).spawn().unwrap()
        };
        let mut brief = start("0.1");
        let mut patient = start("1000");
        let (one, other) = (identity(brief.id()).unwrap(), identity(patient.id()).unwrap());
        assert!(!stays(&one, &wanted).await.unwrap());
        assert!(stays(&other, &wanted).await.unwrap());
        patient.kill().unwrap();
        patient.wait().unwrap();
        brief.wait().unwrap();
    }
}
