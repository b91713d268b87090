//! Large files.

use std::time::Duration;

use super::*;

/// Less than the time that one may wait for a piece.
const DEADLINE: Duration = Duration::from_secs(50);

#[tokio::test]
async fn a_large_file_does_not_wait_for_a_client_without_patience() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = Plain::connect(listener.local_addr().unwrap()).await.unwrap();
    let _far = listener.accept().await.unwrap();
    let (file, length) = (tempfile::tempfile().unwrap(), 64 << 20);
    file.set_len(length).unwrap();
    let part = FilePart { file: Arc::new(file), start: 0, length };
    let disk = Handle::current();
    let (client, pace) = (near.into(), Pace::spent());
    let sent = tokio::time::timeout(DEADLINE, part.send(&disk, &client, &pace));
    assert_eq!(sent.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
}
