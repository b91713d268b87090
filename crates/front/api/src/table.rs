//! The table of routes: each is registered with the right that it needs, and there is no way to
//! register one without.

use std::sync::Arc;

use access_core::Right;
use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{self, MethodRouter};

use super::door::{Door, Gate, pass};
use super::openapi::signature::{Described, Description};

/// Whether a request is a change, which the audit records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    Change,
    /// It changes nothing that people decide, or must work when the store does not.
    Nothing,
}

/// One line of the table, for the tests that walk it.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub struct TableRow {
    pub method: &'static str,
    pub path: &'static str,
    pub right: Right,
    pub recording: Recording,
    pub description: Description,
}

/// One route, but for its method and handler.
struct Route {
    path: &'static str,
    right: Right,
    recording: Recording,
    description: Description,
}

pub struct Table<S> {
    router: Router<S>,
    door: Option<Arc<Door>>,
    #[cfg(test)]
    pub rows: Vec<TableRow>,
}

impl<S: Clone + Send + Sync + 'static> Table<S> {
    /// Begins a table; without a door there are no people, and every token is refused.
    pub fn new(door: Option<Arc<Door>>) -> Table<S> {
        Table {
            router: Router::new(),
            door,
            #[cfg(test)]
            rows: Vec::new(),
        }
    }

    pub fn get<H, T>(self, path: &'static str, right: Right, handler: H) -> Table<S>
    where
        H: Handler<T, S> + Described<T>,
        T: 'static,
    {
        let route =
            Route { path, right, recording: Recording::Nothing, description: H::description() };
        self.add("GET", route, routing::get(handler))
    }

    /// Adds a change.
    pub fn post<H, T>(self, path: &'static str, right: Right, handler: H) -> Table<S>
    where
        H: Handler<T, S> + Described<T>,
        T: 'static,
    {
        let route =
            Route { path, right, recording: Recording::Change, description: H::description() };
        self.add("POST", route, routing::post(handler))
    }

    /// Adds a request that the audit does not record.
    pub fn post_unrecorded<H, T>(self, path: &'static str, right: Right, handler: H) -> Table<S>
    where
        H: Handler<T, S> + Described<T>,
        T: 'static,
    {
        let route =
            Route { path, right, recording: Recording::Nothing, description: H::description() };
        self.add("POST", route, routing::post(handler))
    }

    /// Adds a change.
    pub fn delete<H, T>(self, path: &'static str, right: Right, handler: H) -> Table<S>
    where
        H: Handler<T, S> + Described<T>,
        T: 'static,
    {
        let route =
            Route { path, right, recording: Recording::Change, description: H::description() };
        self.add("DELETE", route, routing::delete(handler))
    }

    /// Adds methods that write a key, which the store's own history records.
    pub fn put_and_delete<P, D, PT, DT>(
        self,
        path: &'static str,
        right: Right,
        put: P,
        delete: D,
    ) -> Table<S>
    where
        P: Handler<PT, S> + Described<PT>,
        D: Handler<DT, S> + Described<DT>,
        PT: 'static,
        DT: 'static,
    {
        let recording = Recording::Nothing;
        let putting = Route { path, right, recording, description: P::description() };
        let deleting = Route { path, right, recording, description: D::description() };
        self.add("PUT", putting, routing::put(put)).add("DELETE", deleting, routing::delete(delete))
    }

    fn add(mut self, method: &'static str, route: Route, handler: MethodRouter<S>) -> Table<S> {
        let Route { path, right, recording, description } = route;
        let gate = Gate { door: self.door.clone(), right, recording };
        let handler = handler.route_layer(from_fn_with_state(gate, pass));
        self.router = self.router.route(path, handler);
        #[cfg(test)]
        self.rows.push(TableRow { method, path, right, recording, description });
        #[cfg(not(test))]
        let _ = (method, description);
        self
    }

    pub fn with_state<S2>(self, state: S) -> Table<S2> {
        Table {
            router: self.router.with_state(state),
            door: self.door,
            #[cfg(test)]
            rows: self.rows,
        }
    }

    pub fn into_router(self) -> Router<S> {
        self.router
    }
}
