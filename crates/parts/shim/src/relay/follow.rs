//! The thread in a network of its own that closes to it what becomes a member of the cluster while
//! the program runs. It alone keeps the right to change routes there; it takes nothing but
//! addresses from a file of the node's, and opens nothing again.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::inside::STACK_BYTES;
use super::routes;
use crate::sandbox::keep_network_privilege;

/// Bytes of the file that are read: the addresses of many more members than a cluster has.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The space for news of the directory; what they say does not matter.
const NEWS_BYTES: usize = 4 << 10;

/// Starts the thread in the network of the calling thread, in which `closed` is closed already.
pub fn start(file: PathBuf, closed: Vec<IpAddr>) -> anyhow::Result<()> {
    let directory = file.parent().context("the file of members has no directory")?;
    // From here on, nothing that is put there goes unnoticed.
    let news = inotify::init(CreateFlags::CLOEXEC)?;
    inotify::add_watch(&news, directory, WatchFlags::MOVED_TO)
        .with_context(|| format!("{} cannot be watched", directory.display()))?;
    let mut closed = closed;
    close_new(&file, &mut closed)?;
    let follow = move || {
        // Without it, what comes later would be open: so there is no network without it.
        let ended = keep_network_privilege().and_then(|()| follow(&news, &file, &mut closed));
        let _ = ended;
        std::process::exit(1);
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(follow)?;
    Ok(())
}

fn follow(news: &OwnedFd, file: &Path, closed: &mut Vec<IpAddr>) -> anyhow::Result<()> {
    let mut space = [0; NEWS_BYTES];
    loop {
        match rustix::io::read(news, &mut space) {
            Err(rustix::io::Errno::INTR) => continue,
            read => read?,
        };
        close_new(file, closed)?;
    }
}

/// Closes what stands in the file and is not closed yet.
fn close_new(file: &Path, closed: &mut Vec<IpAddr>) -> anyhow::Result<()> {
    let text = match os_text(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("{} cannot be read", file.display()))?,
    };
    let new = unknown(&text, closed);
    let (known, now) = (routes::closed(&[], closed), routes::closed(&new, closed));
    for (network, length) in now.into_iter().filter(|one| !known.contains(one)) {
        routes::close(network, length).context("a route of it")?;
    }
    closed.extend(new);
    Ok(())
}

fn os_text(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(opened, FILE_BYTES_MAX), &mut text)?;
    Ok(text)
}

/// Returns the addresses of a text that are not known.
fn unknown(text: &str, known: &[IpAddr]) -> Vec<IpAddr> {
    let all = text.lines().filter_map(|line| line.trim().parse::<IpAddr>().ok());
    let mut new: Vec<IpAddr> = all.filter(|address| !known.contains(address)).collect();
    new.sort();
    new.dedup();
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_closed_once() {
        let known: Vec<IpAddr> = vec!["203.0.113.9".parse().unwrap()];
        let text = "203.0.113.9\n203.0.113.10\n\nnobody\n2001:db8::1\n203.0.113.10\n";
        let new: Vec<String> = unknown(text, &known).iter().map(ToString::to_string).collect();
        assert_eq!(new, ["203.0.113.10", "2001:db8::1"]);
    }
}
