//! The servers behind a table of routes: each answers every request with a status of its own, on
//! kept connections, from a thread of its own.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The statuses of the endpoint that was there before a change, and of the one after.
pub const OLD: u16 = 200;
pub const NEW: u16 = 202;
/// The most bytes of a request; a head is smaller.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

pub struct Answering {
    pub port: u16,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Answering {
    pub fn start(status: u16) -> anyhow::Result<Answering> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let body = move || {
            runtime.block_on(async {
                let mut connections = JoinSet::new();
                loop {
                    tokio::select! {
                        () = stopped.notified() => return,
                        accepted = listener.accept() => {
                            if let Ok((stream, _)) = accepted {
                                connections.spawn(answer(stream, status));
                            }
                        }
                        Some(_) = connections.join_next() => {}
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name(format!("answers-{status}")).spawn(body)?;
        Ok(Answering { port, stop, thread: Some(thread) })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.thread.take().map(|thread| thread.join().ok());
    }
}

async fn answer(mut stream: TcpStream, status: u16) {
    let text = format!("HTTP/1.1 {status} OK\r\nContent-Length: 2\r\n\r\nok");
    stream.set_nodelay(true).ok();
    let mut bytes = Vec::with_capacity(1024);
    while bytes.len() < REQUEST_BYTES_MAX && stream.read_buf(&mut bytes).await.is_ok_and(|n| n > 0)
    {
        // Requests come one at a time, and without bodies.
        if bytes.ends_with(b"\r\n\r\n") {
            bytes.clear();
            if stream.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
