//! The least that an answer from memory can cost: a server that has nothing to decide. It knows its
//! only answer and does what every server has to do: it waits, receives and sends.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use slab::Slab;

use os::loopback;

/// The most events that are asked for at a time, as many as an event loop does.
const EVENTS_MAX: usize = 1024;
/// The size of the buffer for a request; one of the benchmark has a tenth of it.
const REQUEST_BYTES: usize = 2 * 1024;
/// The event number of the listener, which no connection has.
const LISTENER: u64 = u64::MAX;

#[derive(Debug, Args)]
pub struct LeastArgs {
    #[arg(long)]
    listen: SocketAddr,
    /// The file that every answer contains
    #[arg(long)]
    content: PathBuf,
}

/// Serves until standard input ends, so that it never outlives the measurement.
pub fn run(args: &LeastArgs) -> anyhow::Result<()> {
    let content = fs::read(&args.content)
        .with_context(|| format!("{} cannot be read", args.content.display()))?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
    let answer = [head.into_bytes(), content].concat();
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("{} cannot be listened on", args.listen))?;
    loopback::ease(&listener, args.listen.ip());
    listener.set_nonblocking(true)?;
    std::thread::spawn(|| {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        std::process::exit(0);
    });
    serve(&listener, &answer)
}

fn serve(listener: &TcpListener, answer: &[u8]) -> anyhow::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut clients = Slab::new();
    let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
    loop {
        let (events, _) = epoll::wait(&epoll, &mut room, None)?;
        for event in events {
            match event.data.u64() {
                LISTENER => accept(listener, &epoll, &mut clients)?,
                number => {
                    let number = usize::try_from(number)?;
                    if clients.get(number).is_some_and(|client| serve_one(client, answer).is_err())
                    {
                        clients.remove(number);
                    }
                }
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    epoll: &OwnedFd,
    clients: &mut Slab<TcpStream>,
) -> anyhow::Result<()> {
    // A client that has gone again needs no answer.
    let Ok((client, _)) = listener.accept() else { return Ok(()) };
    client.set_nonblocking(true)?;
    client.set_nodelay(true)?;
    let place = clients.vacant_entry();
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, &client, EventData::new_u64(place.key() as u64), flags)?;
    place.insert(client);
    Ok(())
}

/// Answers one request: those of the benchmark come in one piece, and their answers fit into the
/// socket's buffer.
fn serve_one(client: &TcpStream, answer: &[u8]) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    match recv(client, &mut request, RecvFlags::empty()) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => {
            send(client, answer, SendFlags::NOSIGNAL)?;
            Ok(())
        }
        Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
