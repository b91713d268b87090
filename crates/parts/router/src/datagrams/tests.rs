//! Flows over a socket to an endpoint that is there, by a clock that is set.

use std::sync::Arc;

use model::{InstanceId, ProcessType};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::*;
use crate::endpoint::Endpoint;
use crate::queue::{Queue, QueueLimits};
use metrics::ports::Traffic;
use runtime::driver::Clock;

const IDLE_MS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(20);

/// One endpoint, and a clock that the test sets.
#[derive(Clone)]
struct Alone {
    endpoint: Arc<Endpoint>,
    queue: Arc<Queue>,
    now_ms: Rc<Cell<u64>>,
    port: Arc<PortCounters>,
}

impl FlowEndpoints for Alone {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn idle_ms(&self) -> u64 {
        IDLE_MS
    }

    fn enter(&self, _: SocketAddr) -> Option<Admitted> {
        let permit = Permit::enter(&self.endpoint, &self.queue)?;
        Some(Admitted { permit, port: Some(self.port.clone()) })
    }

    fn failed(&self, _: &Permit) {
        panic!("it answers");
    }

    fn ended(&self, _: &Flow, _: TransferEnd) {}

    fn carry(&self, _: Rc<Gate>, _: Rc<Flow>, _: Datagrams) -> Carrying {
        unreachable!("it has an address")
    }
}

impl Alone {
    /// Starts an endpoint that echoes everything.
    async fn start() -> Alone {
        let back_end = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = back_end.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 64];
            while let Ok((count, from)) = back_end.recv_from(&mut buffer).await {
                back_end.send_to(&buffer[..count], from).await.unwrap();
            }
        });
        let clock = Clock::start();
        let queue = Queue::new(clock, Arc::new(Notify::new()), QueueLimits::default());
        let application = "shop".parse().unwrap();
        let instance = InstanceId { application, process: ProcessType::web(), slot: 1 };
        let endpoint = Endpoint::at(1, instance, at, None);
        let (endpoint, queue) = (Arc::new(endpoint), Arc::new(queue));
        Alone { endpoint, queue, now_ms: Rc::default(), port: Arc::default() }
    }

    fn gate(&self, rooms: &Rooms) -> Rc<Gate> {
        let socket = bind(([127, 0, 0, 1], 0).into(), 1).unwrap().remove(0);
        let gate = Gate::new(socket, Box::new(self.clone()), rooms.clone()).unwrap();
        let serving = gate.clone();
        tokio::task::spawn_local(async move { serving.serve().await });
        gate
    }

    fn flows(&self) -> u32 {
        self.endpoint.candidate(0).in_flight
    }
}

async fn client(gate: &Gate) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(gate.address().unwrap()).await.unwrap();
    socket
}

async fn ask(client: &UdpSocket, word: &[u8]) {
    client.send(word).await.unwrap();
    let mut answer = [0; 64];
    let count = tokio::time::timeout(LIMIT, client.recv(&mut answer)).await.expect("an answer");
    assert_eq!(&answer[..count.unwrap()], word);
}

#[tokio::test]
async fn flows_beyond_the_limit_are_refused_and_those_that_are_there_go_on() {
    let test = async {
        let (site, rooms) = (Alone::start().await, Rooms::new(2));
        let (one, other) = (site.gate(&rooms), site.gate(&rooms));
        let (first, second) = (client(&one).await, client(&other).await);
        ask(&first, b"first").await;
        ask(&second, b"second").await;
        // The limit is that of all sockets together. A socket's datagrams are seen in turn, so
        // these have been seen once one behind them is answered.
        let (third, fourth) = (client(&one).await, client(&other).await);
        for round in [b"a", b"b"] {
            third.send(b"third").await.unwrap();
            fourth.send(b"fourth").await.unwrap();
            ask(&first, round).await;
            ask(&second, round).await;
            assert_eq!(site.flows(), 2, "and what was refused holds nothing");
            assert_eq!(third.try_recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        // A flow that has ended makes room.
        site.now_ms.set(IDLE_MS - 1);
        ask(&first, b"again").await;
        site.now_ms.set(IDLE_MS);
        other.expire();
        ask(&third, b"third").await;
        ask(&first, b"on").await;
        assert_eq!(site.flows(), 2);
        // Three flows have come, and two of them are there; each of four datagrams was refused.
        let words = ["first", "second", "a", "b", "a", "b", "again", "third", "on"];
        let bytes = words.iter().map(|word| word.len() as u64).sum();
        let counted =
            Traffic { connections: 3, open: 2, bytes_in: bytes, bytes_out: bytes, refused: 4 };
        assert_eq!(site.port.traffic(), counted);
    };
    LocalSet::new().run_until(test).await;
}
