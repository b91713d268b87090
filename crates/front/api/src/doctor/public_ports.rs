//! How this node can have the ports 80 and 443: which ways there are on this machine for a program
//! without rights, whether they are open, and a trial of each port.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use api_types::Check;

use super::{ok, warn};

/// The ports at which browsers look.
const PORTS: [u16; 2] = [80, 443];
/// The first port that needs no right.
const FREE_FROM: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// The capability `CAP_NET_BIND_SERVICE`.
const BIND_SERVICE: u32 = 10;

/// The ways that this machine offers, as far as a program without rights can see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ways {
    /// The first port that everybody may bind; `None` if this kernel does not say.
    free_from: Option<u16>,
    /// Whether this process may bind lower ones all the same.
    has_capability: bool,
    /// Sockets that something else bound and passed on to this process.
    passed_on: u32,
    is_root: bool,
}

impl Ways {
    fn of_this_machine() -> Ways {
        let free_from = fs::read_to_string(FREE_FROM).ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let own = std::process::id().to_string();
        let is_ours = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == own);
        let count = std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse().ok());
        Ways {
            free_from: free_from.and_then(|text| text.trim().parse().ok()),
            has_capability: has_capability(&status),
            passed_on: count.filter(|_| is_ours).unwrap_or(0),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Returns the way by which a port below 1024 can be bound here.
    fn open(&self, port: u16) -> Option<String> {
        if self.free_from.is_some_and(|first| port >= first) {
            let first = self.free_from.unwrap_or_default();
            return Some(format!("everybody may bind ports from {first} on (sysctl)"));
        }
        match (self.is_root, self.has_capability) {
            (true, true) => Some("this node runs as root".into()),
            (false, true) => Some("this node has CAP_NET_BIND_SERVICE".into()),
            (_, false) => None,
        }
    }
}

/// Returns whether the effective capabilities in `/proc/PID/status` have the one.
fn has_capability(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> BIND_SERVICE & 1 == 1)
}

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trial {
    /// It could be bound, and was let go.
    Free,
    /// This node listens there.
    Own,
    Taken,
    Denied,
    Failed(String),
}

fn attempt(port: u16, own: &[SocketAddr]) -> Trial {
    if own.iter().any(|address| address.port() == port) {
        return Trial::Own;
    }
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Trial::Free,
        Err(error) => match error.kind() {
            ErrorKind::PermissionDenied => Trial::Denied,
            ErrorKind::AddrInUse => Trial::Taken,
            _ => Trial::Failed(error.to_string()),
        },
    }
}

/// Checks both ports; `own` are the addresses at which this node listens.
pub fn check(own: &[SocketAddr]) -> Vec<Check> {
    let ways = Ways::of_this_machine();
    PORTS.iter().map(|port| judge(*port, &ways, &attempt(*port, own))).collect()
}

fn judge(port: u16, ways: &Ways, trial: &Trial) -> Check {
    let name = format!("port {port}");
    let option = if port == 443 { "https" } else { "http" };
    let passed_on = match ways.passed_on {
        0 => String::new(),
        count => format!("; {count} sockets were passed on to it (socket activation)"),
    };
    let way = ways.open(port);
    match trial {
        Trial::Own => ok(&name, format!("this node listens there{passed_on}")),
        Trial::Free => {
            let way = way.unwrap_or_else(|| "it could be bound".into());
            let detail =
                format!("free, tried: {way}; `cortex up --{option} 0.0.0.0:{port}` has it");
            ok(&name, detail)
        }
        Trial::Taken => {
            let detail = format!("another program listens there{passed_on}");
            let advice = format!(
                "stop it, or have it pass on what comes: `cortex router export` writes a \
                 configuration of nginx or HAProxy; `ss -ltnp 'sport = :{port}'` says which it is"
            );
            warn(&name, detail, &advice)
        }
        Trial::Denied => {
            let from = match ways.free_from {
                Some(first) => format!("ports below {first} need a right that this node has not"),
                None => "this node may not bind it".into(),
            };
            warn(&name, format!("{from}{passed_on}"), &advice(port))
        }
        Trial::Failed(why) => warn(&name, format!("it cannot be bound: {why}"), &advice(port)),
    }
}

/// Returns the ways to a port, one of which somebody with rights has to open once.
fn advice(port: u16) -> String {
    let program = std::env::current_exe().map(|path| path.display().to_string());
    let program = program.unwrap_or_else(|_| "cortex".into());
    format!(
        "as root, one of these: `sysctl -w net.ipv4.ip_unprivileged_port_start=80` (and in \
         /etc/sysctl.d to keep it); `setcap cap_net_bind_service=+ep {program}` (again after each \
         upgrade); a systemd socket with `ListenStream={port}` for the node's service; or \
         `nft add table ip cortex; nft 'add chain ip cortex in {{ type nat hook prerouting \
         priority dstnat; }}'; nft add rule ip cortex in tcp dport {port} redirect to :{}` \
         (docs/domains.md)",
        if port == 443 { "8443, with `up --https 0.0.0.0:8443 --https-port 443`" } else { "8080" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_types::CheckResult;

    #[test]
    fn capabilities_are_read() {
        for (line, expected) in [
            ("CapEff:\t0000000000000400", true),
            ("CapEff:\t000001ffffffffff", true),
            ("CapEff:\t0000000000000000", false),
            ("CapEff:\tx", false),
            ("CapPrm:\t0000000000000400", false),
            ("", false),
        ] {
            assert_eq!(has_capability(&format!("Name:\tx\n{line}\nA: b\n")), expected, "{line}");
        }
    }

    #[test]
    fn what_can_be_done_is_said() {
        let closed = Ways { free_from: Some(1024), ..Ways::default() };
        let denied = judge(443, &closed, &Trial::Denied);
        assert_eq!(denied.result, CheckResult::Warn);
        let advice = denied.advice.unwrap();
        for way in ["sysctl", "setcap", "ListenStream=443", "nft add rule", "--https-port 443"] {
            assert!(advice.contains(way), "{advice}");
        }
        let open = Ways { free_from: Some(80), ..Ways::default() };
        let free = judge(80, &open, &Trial::Free);
        assert!(free.detail.contains("from 80 on") && free.detail.contains("--http 0.0.0.0:80"));
        assert_eq!(closed.open(80), None);
        let able = Ways { has_capability: true, ..closed.clone() };
        assert!(able.open(80).unwrap().contains("CAP_NET_BIND_SERVICE"));
        let passed = Ways { passed_on: 2, ..closed };
        assert!(judge(80, &passed, &Trial::Own).detail.contains("2 sockets were passed on"));
        assert_eq!(judge(80, &passed, &Trial::Taken).result, CheckResult::Warn);
    }

    #[test]
    fn a_port_is_tried_and_let_go() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(attempt(address.port(), &[]), Trial::Taken);
        assert_eq!(attempt(address.port(), &[address]), Trial::Own);
        drop(taken);
        assert_eq!(attempt(address.port(), &[]), Trial::Free);
        assert_eq!(attempt(address.port(), &[]), Trial::Free);
    }
}
