//! The passing of open files from process to process, beside the bytes of a UNIX socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The maximum number of descriptors of a message: a program's input, the pipe on which a sandbox
/// reports, its network, and what keeps that.
const DESCRIPTORS_MAX: usize = 4;

/// Sends descriptors along with at least one byte; returns how many bytes were sent.
pub fn send(stream: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("more open files than fit one message"));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(sent)
}

/// Receives bytes; appends to `fds` what came along. The kernel closes those for which there is no
/// room.
pub fn receive(stream: impl AsFd, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_open_file_arrives_with_its_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut kept, given) = UnixStream::pair().unwrap();
        assert_eq!(send(&near, b"here", &[given.as_fd()]).unwrap(), 4);
        drop(given);
        let (mut bytes, mut fds) = ([0; 9], Vec::new());
        assert_eq!(receive(&far, &mut bytes, &mut fds).unwrap(), 4);
        let mut taken = UnixStream::from(fds.pop().unwrap());
        assert!(fds.is_empty() && bytes.starts_with(b"here"));
        taken.write_all(b"through").unwrap();
        let mut through = [0; 7];
        kept.read_exact(&mut through).unwrap();
        assert_eq!(&through, b"through");
    }
}
