//! The kinds of work: what a request asks of a server, and how frequent it becomes.

/// What every server is asked for under the same path. What takes how long is the same for all.
#[derive(Debug)]
pub struct Work {
    pub name: &'static str,
    pub path: &'static str,
    pub about: &'static str,
    /// The requests per second at the end of the ramp: more than some of the servers can answer.
    pub peak: f64,
}

/// The time that a query sleeps in the database.
pub const QUERY_SECONDS: f64 = 0.1;
/// The connections that each server may have to the database: as many queries at a time.
pub const QUERIES_MAX: usize = 200;
/// The steps of a sum: a few milliseconds in Ruby.
pub const CPU_STEPS: u32 = 100_000;

pub const WORKS: [Work; 4] = [
    Work { name: "short", path: "/short", about: "a short answer", peak: 10_000.0 },
    Work {
        name: "query",
        path: "/query",
        about: "0.1 s in PostgreSQL, 200 connections at most",
        peak: 1_000.0,
    },
    Work {
        name: "remote",
        path: "/remote",
        about: "44 KB of another service, which takes 170 ms",
        peak: 500.0,
    },
    Work {
        name: "cpu",
        path: "/cpu",
        about: "a sum of 100,000 steps in the server's own language",
        peak: 400.0,
    },
];
