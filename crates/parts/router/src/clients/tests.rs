//! Clients that are counted.

use super::*;

#[test]
fn one_client_gets_a_part_of_the_connections_and_clients_that_left_are_forgotten() {
    let clients = Rc::new(Clients::new(8));
    let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
    let mut held: Vec<_> = (0..4).map(|_| clients.hold(one).unwrap()).collect();
    assert!(clients.hold(one).is_none() && clients.hold(one).is_none());
    let others = clients.hold(other).unwrap();
    held.pop();
    assert!(clients.hold(one).is_some());
    drop((held, others));
    assert!(clients.counts.borrow().is_empty());
}
