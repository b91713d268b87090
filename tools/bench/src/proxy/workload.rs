//! The workloads: what is asked for, over which protocol, and which ratio is required.

use serde::Serialize;

/// The protocol that clients speak. The backend is always asked in clear, over HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    Plain,
    /// TLS 1.3, without resumption of sessions.
    Tls,
    /// HTTP/2 inside the same TLS, chosen by ALPN.
    Http2,
}

/// One row: what the clients ask for, and the ratio that is required: requests per second of
/// processor time, compared with the best peer's.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    pub host: &'static str,
    pub path: &'static str,
    pub over: Over,
    pub keep_alive: bool,
    /// Whether the contender itself has the file, and no backend is asked.
    pub is_file: bool,
    /// The number of connections, all of them busy.
    pub connections: u32,
    /// The number of requests at a time on each connection; more than one needs HTTP/2.
    pub streams: u32,
    /// The number of further connections that asked once and stay open.
    pub idle: usize,
    pub floor: f64,
    pub aim: f64,
    /// The ratio to nginx that is required where it is higher than that to the best peer.
    pub nginx_floor: Option<f64>,
}

pub const SMALL: Workload = Workload {
    name: "1 KiB, kept connections",
    host: "proxy.localhost",
    path: "/small",
    over: Over::Plain,
    keep_alive: true,
    is_file: false,
    connections: 64,
    streams: 1,
    idle: 0,
    floor: 1.1,
    aim: 1.2,
    nginx_floor: None,
};

pub const WORKLOADS: [Workload; 8] = [
    SMALL,
    Workload {
        name: "1 KiB, new connection each",
        keep_alive: false,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
    Workload {
        name: "100 KB, kept connections",
        path: "/large",
        floor: 1.3,
        aim: 1.6,
        nginx_floor: Some(2.0),
        ..SMALL
    },
    Workload {
        name: "1 KiB, 512 busy, 1,000 idle",
        connections: 512,
        idle: 1_000,
        floor: 1.25,
        aim: 1.5,
        ..SMALL
    },
    Workload {
        name: "6 KB file, kept connections",
        host: "files.localhost",
        path: "/file/page.txt",
        is_file: true,
        floor: 1.4,
        aim: 1.7,
        ..SMALL
    },
    Workload { name: "1 KiB, TLS 1.3, kept", over: Over::Tls, floor: 1.0, aim: 1.1, ..SMALL },
    Workload {
        name: "1 KiB, new TLS handshakes",
        over: Over::Tls,
        keep_alive: false,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
    Workload {
        name: "1 KiB, HTTP/2, 8 x 8 streams",
        over: Over::Http2,
        connections: 8,
        streams: 8,
        floor: 1.0,
        aim: 1.1,
        ..SMALL
    },
];
