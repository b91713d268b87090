//! A connection that was upgraded: bytes both ways until one side ends. It is no request any more
//! and holds up no drain.

use std::io;
use std::time::Duration;

use super::connection::WRITE_TIME_MAX;
use super::endpoint::Permit;
use super::pool::Pool;
use super::stream::{fill, within, write_all};
use super::wire::Wire;

/// WebSockets that are alive say so far more often.
const IDLE_TIME_MAX: Duration = Duration::from_secs(3600);
/// How soon a drain is noticed.
const DRAIN_CHECK: Duration = Duration::from_millis(500);

pub async fn run(pool: &Pool, client: &Wire, upstream: &Wire, permit: Permit) {
    let both = async {
        tokio::try_join!(one_way(pool, client, upstream), one_way(pool, upstream, client))
    };
    tokio::pin!(both);
    let endpoint = permit.endpoint.clone();
    let mut permit = Some(permit);
    loop {
        tokio::select! {
            // An error of one side ends both; the sockets close with their owners.
            _ = &mut both => return,
            () = tokio::time::sleep(DRAIN_CHECK), if permit.is_some() => {
                if endpoint.is_draining() {
                    permit = None;
                }
            }
        }
    }
}

async fn one_way(pool: &Pool, from: &Wire, to: &Wire) -> io::Result<()> {
    loop {
        within(IDLE_TIME_MAX, from.readable()).await?;
        let mut buffer = pool.buffer();
        let result = match fill(from, &mut buffer, IDLE_TIME_MAX).await {
            Ok(0) => {
                to.shut_down_writing();
                Ok(false)
            }
            Ok(_) => write_all(to, buffer.filled(), WRITE_TIME_MAX).await.map(|()| true),
            Err(error) => Err(error),
        };
        pool.give_back(buffer);
        if !result? {
            return Ok(());
        }
    }
}
