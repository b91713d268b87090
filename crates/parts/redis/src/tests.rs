//! Tests of the Redis interface over a real store, byte by byte as clients speak.

mod drivers;
mod lane;
mod messages;
mod rights;
mod spaces;
mod values;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use store_core::resp::reply::Replies;
use store_core::resp::response::{Response, parse};
use tempfile::TempDir;

use super::{ServerConfig, ServerHandle};
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::SharedStore;
use store::bus::Bus;
use store::options::Options;

/// A time limit that is reached only if something is wrong.
const DEADLINE: Duration = Duration::from_secs(60);

struct Server {
    listener: ServerHandle,
    store: SharedStore,
    bus: Arc<Bus>,
    directory: TempDir,
}

impl Server {
    fn start() -> Server {
        Server::with_lane_from(Some(0))
    }

    fn with_lane_from(lane_from: Option<usize>) -> Server {
        Server::with(ServerConfig { lane_from, ..ServerConfig::default() })
    }

    /// Starts with these settings, and listens everywhere.
    fn with(config: ServerConfig) -> Server {
        let directory = TempDir::new().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        let (node, clock, bus) = ("n1".parse().unwrap(), Clock::start(), Arc::new(Bus::default()));
        let store = store::open::open_alone(&layout, node, clock, Options::default()).unwrap();
        let tls = super::tls::self_made(&directory.path().join("tls"), vec!["localhost".into()]);
        let any = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig {
            tcp: Some(any),
            unix: Some(directory.path().join("socket")),
            tls: Some((any, tls.unwrap())),
            applications: Some((any, Arc::new(spaces::application_of))),
            ..config
        };
        let node = "n1".parse().unwrap();
        let listener = super::start(config, store.clone(), bus.clone(), node, clock).unwrap();
        Server { listener, store, bus, directory }
    }

    fn client(&self) -> Client<TcpStream> {
        Server::client_at(self.listener.tcp.unwrap())
    }

    fn client_at(address: std::net::SocketAddr) -> Client<TcpStream> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Client { stream, input: Vec::new() }
    }
}

struct Client<S> {
    stream: S,
    input: Vec<u8>,
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut out = Replies::default();
    out.array(words.len());
    words.iter().for_each(|word| out.text(word));
    out.bytes
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, words: &[&str]) {
        self.stream.write_all(&encode(words)).unwrap();
    }

    fn next(&mut self) -> Response {
        loop {
            if let Some((response, used)) = parse(&self.input).unwrap() {
                self.input.drain(..used);
                return response;
            }
            let mut piece = vec![0; 1 << 16];
            let count = self.stream.read(&mut piece).expect("a reply comes in time");
            assert!(count > 0, "the server ended the connection");
            self.input.extend_from_slice(&piece[..count]);
        }
    }

    fn ask(&mut self, line: &str) -> Response {
        self.send(&line.split(' ').collect::<Vec<_>>());
        self.next()
    }

    fn text(&mut self, line: &str) -> String {
        show(&self.ask(line))
    }

    fn at_end(&mut self) -> bool {
        self.input.is_empty() && matches!(self.stream.read(&mut [0]), Ok(0))
    }
}

/// Returns a response as `redis-cli` would show it, on one line.
fn show(response: &Response) -> String {
    match response {
        Response::Simple(text) => text.clone(),
        Response::Error(text) => format!("-{text}"),
        Response::Integer(number) => number.to_string(),
        Response::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Response::Null => "nil".into(),
        Response::Array(items) | Response::Push(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" "))
        }
    }
}
