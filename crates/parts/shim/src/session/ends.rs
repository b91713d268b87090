//! This process's ends of what a command reads and writes: one terminal, or a pipe for each
//! direction. Closing them hangs up.

use std::os::fd::OwnedFd;

use anyhow::Context;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use session_core::frame::Size;
use session_core::holder::OutputStream;

use crate::child::Attached;

pub struct Ends {
    /// The command's input; `None` once it was told that no more comes.
    pub input: Option<OwnedFd>,
    /// The command's output; `None` once nothing more comes.
    output: Option<OwnedFd>,
    error: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    is_terminal: bool,
}

fn without_waiting(fd: OwnedFd) -> anyhow::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
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
        let near = without_waiting(near)?;
        let ends = Ends {
            input: Some(near.try_clone()?),
            output: Some(near.try_clone()?),
            error: None,
            terminal: Some(near),
            is_terminal: true,
        };
        ends.resize(size);
        Ok((ends, Attached { terminal: true, stdin, stdout, stderr }))
    }

    pub fn pipes() -> anyhow::Result<(Ends, Attached)> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let ((stdin, input), (output, stdout), (error, stderr)) = (pipe()?, pipe()?, pipe()?);
        let ends = Ends {
            input: Some(without_waiting(input)?),
            output: Some(without_waiting(output)?),
            error: Some(without_waiting(error)?),
            terminal: None,
            is_terminal: false,
        };
        Ok((ends, Attached { terminal: false, stdin, stdout, stderr }))
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    pub fn output(&self, stream: OutputStream) -> Option<&OwnedFd> {
        match stream {
            OutputStream::Output => self.output.as_ref(),
            OutputStream::Error => self.error.as_ref(),
        }
    }

    pub fn close_output(&mut self, stream: OutputStream) {
        match stream {
            OutputStream::Output => self.output = None,
            OutputStream::Error => self.error = None,
        }
    }

    pub fn close(&mut self) {
        let Ends { input, output, error, terminal, .. } = self;
        for end in [input, output, error, terminal] {
            *end = None;
        }
    }

    /// Sets the terminal's size; the kernel tells the command if it is another one.
    pub fn resize(&self, size: Size) {
        let Some(terminal) = &self.terminal else { return };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(terminal, size)
            && error != Errno::IO
        {
            tracing::debug!(%error, "session.not_resized");
        }
    }

    /// Sets the size in two steps, so that the command hears of it although it is as before.
    pub fn redraw(&self, size: Size) {
        self.resize(Size { rows: size.rows.saturating_sub(1).max(1), ..size });
        self.resize(size);
    }

    /// Whether more may come from the command.
    pub fn is_open(&self) -> bool {
        self.output.is_some() || self.error.is_some()
    }
}
