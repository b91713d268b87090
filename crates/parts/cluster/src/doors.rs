//! The doors through which other nodes' calls and streams, and people's clients, reach the parts
//! that take them, once those are there.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use anyhow::Context;
use model::NodeId;
use runtime::lock::locked;
use runtime::members::{BoxedStream, RouterCall, ServeStream, StreamKind, Take};

/// The door for calls to this node's router; they are refused until the router is there.
#[derive(Clone, Default)]
pub struct RouterDoor(Arc<OnceLock<Take>>);

impl RouterDoor {
    pub fn set(&self, take: Take) {
        self.0.set(take).ok();
    }

    pub fn hand_over(&self, call: RouterCall) -> anyhow::Result<()> {
        let take = self.0.get().context("this node has no router: it keeps the store alone")?;
        take(call);
        Ok(())
    }
}

/// A function that takes the connection of a person's client from that address.
pub type TakeClient = Box<dyn Fn(IpAddr, BoxedStream) + Send + Sync>;

/// The door for clients of the API; they are refused until the API is there.
#[derive(Clone, Default)]
pub struct ClientDoor(Arc<Mutex<Option<Arc<TakeClient>>>>);

impl ClientDoor {
    /// Passes clients to `take` from now on: an API that starts again takes the place of the one
    /// before.
    pub fn set(&self, take: TakeClient) {
        *locked(&self.0) = Some(Arc::new(take));
    }

    pub fn close(&self) {
        *locked(&self.0) = None;
    }

    pub fn hand_over(&self, from: IpAddr, stream: BoxedStream) -> anyhow::Result<()> {
        let take = locked(&self.0).clone();
        take.context("this node's API is not there yet")?(from, stream);
        Ok(())
    }
}

/// A door behind which somebody may stand.
type Door = Mutex<Option<Arc<ServeStream>>>;

/// The doors for streams of each kind; they are refused until somebody is there to take them.
#[derive(Clone, Default)]
pub struct Doors(Arc<[Door; StreamKind::ALL.len()]>);

impl Doors {
    fn door(&self, kind: StreamKind) -> MutexGuard<'_, Option<Arc<ServeStream>>> {
        locked(&self.0[kind as usize])
    }

    pub fn set(&self, kind: StreamKind, serve: ServeStream) {
        self.door(kind).get_or_insert(Arc::new(serve));
    }

    /// Lets go of those behind the doors, who hold what is on this side, too.
    pub fn close(&self) {
        StreamKind::ALL.into_iter().for_each(|kind| *self.door(kind) = None);
    }

    pub fn hand_over(
        &self,
        kind: StreamKind,
        peer: NodeId,
        stream: BoxedStream,
    ) -> anyhow::Result<()> {
        let serve = self.door(kind).clone();
        let serve = serve.context("this node has no agent: it keeps the store alone")?;
        serve(peer, stream);
        Ok(())
    }
}
