//! This process's input, read on a thread of its own, so that a terminal or a pipe that stands
//! still holds up no signal.

use bytes::Bytes;
use session_core::frame::DATA_BYTES_MAX;
use tokio::sync::mpsc;

/// Pieces that wait between the thread and the stream.
const PIECES_WAITING_MAX: usize = 8;

/// Reads the input; the end is an empty piece.
pub fn read() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
    std::thread::spawn(move || {
        let mut chunk = vec![0; DATA_BYTES_MAX];
        loop {
            let count = match rustix::io::read(std::io::stdin(), &mut chunk) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => 0,
            };
            let piece = Bytes::copy_from_slice(&chunk[..count]);
            if sender.blocking_send(piece).is_err() || count == 0 {
                return;
            }
        }
    });
    receiver
}
