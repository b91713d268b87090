//! Connections to instances, in the lane and with a task.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::Timespec;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::buffer::Buffer;

/// Returns how many told of something within the time.
fn told(epoll: &OwnedFd, within: Duration) -> usize {
    let mut room = [MaybeUninit::uninit(); 8];
    let within = Timespec::try_from(within).unwrap();
    epoll::wait(epoll, &mut room, Some(&within)).unwrap().0.len()
}

#[tokio::test]
async fn a_connection_that_a_task_waits_for_is_registered_again_once_the_lane_has_it() {
    const SOON: Duration = Duration::from_secs(10);
    let epoll = Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut registrations = UpstreamRegistrations::new(epoll.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut near = Plain::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let descriptor = usize::try_from(near.as_raw_fd()).unwrap();

    assert!(registrations.register(&mut near, 7));
    far.write_all(b"a").await.unwrap();
    assert_eq!(told(&epoll, SOON), 1);
    assert_eq!(registrations.client(descriptor), Some(7));
    let mut buffer = Buffer::default();
    near.read_now(&mut buffer).unwrap();
    near.calm();
    assert!(near.is_untouched(false));

    far.write_all(b"b").await.unwrap();
    assert_eq!(told(&epoll, SOON), 1);
    assert_eq!(registrations.client(descriptor), None);
    timeout(SOON, near.readable()).await.unwrap().unwrap();
    near.read_now(&mut buffer).unwrap();
    far.write_all(b"c").await.unwrap();
    timeout(SOON, near.readable()).await.unwrap().unwrap();
    assert_eq!(told(&epoll, Duration::ZERO), 0);

    assert!(registrations.register(&mut near, 9));
    assert_eq!(told(&epoll, SOON), 1);
    assert_eq!(registrations.client(descriptor), Some(9));
    assert_eq!(buffer.filled(), b"ab");
}
