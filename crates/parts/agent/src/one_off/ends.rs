//! This node's ends of what a command reads and writes: one terminal, or a pipe for each direction.
//! Dropping them hangs up.

use std::io;
use std::os::fd::OwnedFd;

use anyhow::Context;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::net::unix::pipe::{Receiver, Sender};

use api_types::session::Size;
use shim::spec::Attached;

pub struct Ends {
    /// The command's input; `None` once it was told that no more comes.
    pub input: Option<Sender>,
    /// The command's output; `None` once nothing more comes.
    pub output: Option<Receiver>,
    pub error: Option<Receiver>,
    terminal: Option<OwnedFd>,
}

/// Reads what comes next; `None` when nothing more comes: a terminal that nobody holds any more
/// says so by an error.
pub async fn read(end: &Receiver, into: &mut [u8]) -> Option<usize> {
    loop {
        end.readable().await.ok()?;
        match end.try_read(into) {
            Err(error) if is_for_later(&error) => {}
            Ok(0) | Err(_) => return None,
            Ok(count) => return Some(count),
        }
    }
}

/// Writes what there is room for; fails when nobody reads any more.
pub async fn write(end: &Sender, bytes: &[u8]) -> io::Result<usize> {
    loop {
        end.writable().await?;
        match end.try_write(bytes) {
            Err(error) if is_for_later(&error) => {}
            result => return result,
        }
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Returns the reading end of a pipe or a terminal, which are read alike.
fn receiver(fd: OwnedFd) -> anyhow::Result<Receiver> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Receiver::from_owned_fd_unchecked(fd)?)
}

fn sender(fd: OwnedFd) -> anyhow::Result<Sender> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Sender::from_owned_fd_unchecked(fd)?)
}

impl Ends {
    pub fn terminal(size: Size) -> anyhow::Result<(Ends, Attached)> {
        let no_terminal = "this machine has no terminal to give";
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let near = rustix::pty::openpt(flags).context(no_terminal)?;
        rustix::pty::grantpt(&near).context(no_terminal)?;
        rustix::pty::unlockpt(&near).context(no_terminal)?;
        let stdin = rustix::pty::ioctl_tiocgptpeer(&near, flags).context(no_terminal)?;
        let (stdout, stderr) = (stdin.try_clone()?, stdin.try_clone()?);
        let ends = Ends {
            input: Some(sender(near.try_clone()?)?),
            output: Some(receiver(near.try_clone()?)?),
            error: None,
            terminal: Some(near),
        };
        ends.resize(size);
        Ok((ends, Attached { terminal: true, stdin, stdout, stderr }))
    }

    pub fn pipes() -> anyhow::Result<(Ends, Attached)> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let ((stdin, input), (output, stdout), (error, stderr)) = (pipe()?, pipe()?, pipe()?);
        let ends = Ends {
            input: Some(sender(input)?),
            output: Some(receiver(output)?),
            error: Some(receiver(error)?),
            terminal: None,
        };
        Ok((ends, Attached { terminal: false, stdin, stdout, stderr }))
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Sets the terminal's size; the kernel tells the command.
    pub fn resize(&self, size: Size) {
        let Some(terminal) = &self.terminal else { return };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(terminal, size)
            && error != Errno::IO
        {
            tracing::debug!(%error, "run.not_resized");
        }
    }

    /// Whether more may come from the command.
    pub fn is_open(&self) -> bool {
        self.output.is_some() || self.error.is_some()
    }
}
