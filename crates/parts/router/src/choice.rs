//! The choice of the endpoint that a request goes to: near ones as the application's strategy says,
//! unless another node is much less busy. Endpoints that are new or just back are considered less
//! often; where that leaves nobody, they count like all others.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;

use router_core::balance::{Candidate, Endpoints, Turn};
use router_core::{far, ramp, request_key};

use super::endpoint::Endpoint;
use super::table::RoutedApplication;

/// The demands that a request makes on its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    pub reaches: Reaches,
    /// The key of the request; requests with the same key belong on the same endpoint.
    pub key: Option<u64>,
    /// The serial of an endpoint that will not do.
    pub beside: Option<u64>,
}

impl Demands {
    /// Returns the demand for any endpoint of this node, the same one for the same client where the
    /// strategy minds.
    pub fn near(client: IpAddr) -> Demands {
        Demands { key: Some(request_key::of_address(client)), ..Demands::anything(Reaches::Near) }
    }

    pub fn anything(reaches: Reaches) -> Demands {
        Demands { reaches, key: None, beside: None }
    }
}

/// The reach of a request: the nodes that it may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaches {
    /// It came from another router, so it goes no further.
    Near,
    Anywhere,
}

/// The way in which endpoints are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stance {
    /// Endpoints with less than their whole part are considered less often.
    Shares,
    /// All endpoints that admit requests are considered.
    Whole,
    /// No endpoint admits requests, so those that were left alone do, sooner than usual.
    Last,
}

struct View<'a> {
    endpoints: &'a [Arc<Endpoint>],
    now_ms: u64,
    luck: u64,
    beside: Option<u64>,
    stance: Stance,
    /// Whether some were passed over for their share.
    passed_over: Cell<bool>,
    /// Whether some admit requests.
    admit: Cell<bool>,
}

impl Endpoints for View<'_> {
    fn count(&self) -> usize {
        self.endpoints.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        let endpoint = &self.endpoints[index];
        let candidate = match self.stance {
            Stance::Last => endpoint.candidate_as_last(self.now_ms),
            Stance::Shares | Stance::Whole => endpoint.candidate(self.now_ms),
        };
        if !candidate.admits || self.beside == Some(endpoint.serial) {
            return Candidate { admits: false, ..candidate };
        }
        self.admit.set(true);
        if self.stance == Stance::Shares {
            let share = endpoint.share(self.now_ms);
            if share < ramp::WHOLE && !ramp::takes_part(share, self.luck, endpoint.identity) {
                self.passed_over.set(true);
                return Candidate { admits: false, ..candidate };
            }
        }
        candidate
    }

    fn learnt(&self, index: usize) -> u64 {
        self.endpoints[index].learnt()
    }

    fn identity(&self, index: usize) -> u64 {
        self.endpoints[index].identity
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }
}

/// Chooses an endpoint that has room at this moment.
pub fn choose(
    application: &RoutedApplication,
    turn: Turn,
    wants: Demands,
    now_ms: u64,
) -> Option<&Arc<Endpoint>> {
    let (near, admit) = near(application, turn, wants.beside, now_ms);
    if near.is_none() && turn.patient && admit {
        return None;
    }
    if application.far.is_empty() || wants.reaches == Reaches::Near {
        return near;
    }
    nearest(application, near, turn.number, now_ms)
}

/// Chooses a near endpoint, and returns whether any admits requests at all.
fn near(
    application: &RoutedApplication,
    turn: Turn,
    beside: Option<u64>,
    now_ms: u64,
) -> (Option<&Arc<Endpoint>>, bool) {
    let endpoints = &application.endpoints[..];
    let mut view = View {
        endpoints,
        now_ms,
        luck: turn.key.unwrap_or(turn.number as u64),
        beside,
        stance: Stance::Shares,
        passed_over: Cell::new(false),
        admit: Cell::new(false),
    };
    let mut picked = application.balance.pick(turn, &view);
    if picked.is_none() && view.passed_over.get() {
        view.stance = Stance::Whole;
        picked = application.balance.pick(turn, &view);
    }
    let admit = view.admit.get();
    if picked.is_none() && !admit {
        view.stance = Stance::Last;
        picked = application.balance.pick(turn, &view);
    }
    (picked.map(|index| &endpoints[index]), admit)
}

/// Chooses a near endpoint if there is one with room, unless another node is much less busy.
fn nearest<'a>(
    application: &'a RoutedApplication,
    near: Option<&'a Arc<Endpoint>>,
    turn: usize,
    now_ms: u64,
) -> Option<&'a Arc<Endpoint>> {
    if let Some(only) = application.only_far() {
        // Its own queue knows best when there is room.
        return only.candidate(now_ms).has_room().then_some(only);
    }
    let near_in_flight = near.map(|endpoint| endpoint.candidate(now_ms).in_flight);
    if near_in_flight.is_some_and(|in_flight| in_flight < far::NEAR_ENOUGH) {
        return near;
    }
    let at = |index: usize| application.far[index].far_candidate(now_ms);
    let Some(index) = far::pick(turn, application.far.len(), &at) else { return near };
    let better = near_in_flight.is_none_or(|in_flight| far::is_better(in_flight, at(index)));
    if better { Some(&application.far[index]) } else { near }
}
