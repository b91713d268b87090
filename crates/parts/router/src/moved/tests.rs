//! Bytes that are moved.

use std::sync::Arc;

use super::*;
use metrics::ports::{PortCounters, Traffic};

#[test]
fn each_direction_is_counted_apart_and_for_its_port() {
    let (port, moved) = (Arc::<PortCounters>::default(), Moved::default());
    moved.add(Direction::FromClient, 1);
    moved.goes_through(port.take());
    moved.add(Direction::FromClient, 2);
    moved.add(Direction::ToClient, 5);
    let sums = [Direction::FromClient, Direction::ToClient].map(|way| moved.get(way));
    assert_eq!(sums, [3, 5]);
    let open = Traffic { connections: 1, open: 1, bytes_in: 2, bytes_out: 5, refused: 0 };
    assert_eq!(port.traffic(), open);
    drop(moved);
    assert_eq!(port.traffic(), Traffic { open: 0, ..open });
}
