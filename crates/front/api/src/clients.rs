//! Clients with tokens, who come to the node port from anywhere: TLS is the transport's, and here
//! are HTTP, the limits for strangers, and the end of connections whose token has ended.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use access_core::TokenState;
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use model::key::{tokens_prefix, users_prefix};
use runtime::lock::locked;
use runtime::members::{BoxedStream, Members};
use runtime::revocable::Revocable;
use tokio::sync::watch;

use super::peer::{Connection, Peer};
use super::problem::Problem;
use super::{Api, Shared, door, login};
use api_types::login::{HOST, NodeReach, ROSTER_HEADER};

/// The most connections of clients: commands have one or two, and those that follow logs stay.
const CONNECTIONS_MAX: usize = 512;
/// The most connections from one address, behind which there may be an office.
const CONNECTIONS_EACH_MAX: usize = 64;
/// The time in which a request's head has to come; a connection that is kept ends after it, too.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The time for an answer that is under way when its token ends, such as that to its revocation.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// The time between two looks for tokens that have expired; one that is revoked is noticed at once.
const EXPIRY_LOOK: Duration = Duration::from_secs(10);

/// Serves clients until the store stops, and for ever where no other node can call this one.
pub async fn serve(api: Shared, routes: Router) -> anyhow::Result<()> {
    let Some(peers) = api.peers.clone() else { return std::future::pending().await };
    let open = OpenConnections::default();
    let (for_clients, taken) = (api.clone(), open.clone());
    peers.take_clients(Box::new(move |from, stream| {
        let connection = Arc::new(Connection::new(from));
        if let Err(why) = taken.add(&connection) {
            tracing::warn!(%from, why, "api.client_refused");
            return;
        }
        let (api, routes) = (for_clients.clone(), routes.clone());
        runtime::task::spawn(serve_one(api, routes, connection, stream));
    }));
    tokio::select! {
        ended = open.end_with_their_tokens(&api) => ended,
        // The transport takes no new ones then.
        () = is_removed(peers.removed()) => {
            open.all().iter().for_each(|one| one.end());
            std::future::pending().await
        }
    }
}

async fn is_removed(mut removed: watch::Receiver<bool>) {
    if removed.wait_for(|removed| *removed).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn serve_one(api: Shared, routes: Router, connection: Arc<Connection>, stream: BoxedStream) {
    let cut = {
        // The request is over where the connection becomes a session's: it is counted and ended all
        // the same.
        let kept = connection.clone();
        async move {
            kept.ended().await;
            tokio::time::sleep(LAST_ANSWER_MAX).await;
        }
    };
    let stream = Revocable::new(stream, cut);
    let from = connection.from;
    let service = service_fn(|request| {
        answer(api.clone(), routes.clone(), Peer::Network(connection.clone()), request)
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        () = connection.ended() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%from, %error, "api.client_lost");
    }
}

async fn answer(
    api: Shared,
    routes: Router,
    peer: Peer,
    mut request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let roster = login::roster(&api);
    if let Err(problem) = check_host(&request, &roster) {
        return Ok(problem.into_response());
    }
    request.extensions_mut().insert(ConnectInfo(peer));
    let mut response = TowerToHyperService::new(routes).call(request.map(Body::new)).await?;
    // A client that knows other nodes than these asks again.
    if let Ok(value) = HeaderValue::try_from(login::roster_hash(&roster)) {
        response.headers_mut().insert(ROSTER_HEADER, value);
    }
    Ok(response)
}

/// Refuses a request for another host: a page whose name was made to lead here by DNS is not to
/// speak with the API of whoever looks at it.
fn check_host<B>(request: &Request<B>, roster: &[NodeReach]) -> Result<(), Problem> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host_of(host.unwrap_or_default());
    let addresses = roster.iter().flat_map(|node| &node.addresses);
    let is_own = name == HOST
        || name == "localhost"
        || name.parse::<IpAddr>().is_ok()
        || addresses.map(|address| host_of(address)).any(|own| own.eq_ignore_ascii_case(name));
    if is_own {
        return Ok(());
    }
    let detail = "this is the API of a node, and not what stands under that name";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", detail)
        .hint("ask for it by its address, as `cortex` does"))
}

/// Returns the host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let host = match address.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => host,
        _ => address,
    };
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The connections of clients that are open.
#[derive(Clone, Default)]
struct OpenConnections(Arc<Mutex<Vec<Weak<Connection>>>>);

impl OpenConnections {
    fn add(&self, connection: &Arc<Connection>) -> Result<(), &'static str> {
        let mut open = locked(&self.0);
        open.retain(|one| one.strong_count() > 0);
        if open.len() >= CONNECTIONS_MAX {
            return Err("too many clients are connected");
        }
        let network = connection.network();
        let of_it = open.iter().filter_map(Weak::upgrade).filter(|one| one.network() == network);
        if of_it.count() >= CONNECTIONS_EACH_MAX {
            return Err("too many clients are connected from there");
        }
        open.push(Arc::downgrade(connection));
        Ok(())
    }

    fn all(&self) -> Vec<Arc<Connection>> {
        locked(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends each connection on which a token was shown that is good no more.
    async fn end_with_their_tokens(&self, api: &Api) -> anyhow::Result<()> {
        let _at_the_end = EndAll(self.clone());
        let mut tokens = api.store.watch(tokens_prefix(), None).await?;
        let mut users = api.store.watch(users_prefix(), None).await?;
        loop {
            let open = self.all();
            let shown: BTreeSet<_> = open.iter().flat_map(|one| one.tokens()).collect();
            let mut ended = BTreeSet::new();
            for hash in shown {
                let found = door::token::find_token(&api.store, hash, api.now()).await;
                if !matches!(found, Ok((TokenState::Valid, ..)) | Err(_)) {
                    ended.insert(hash);
                }
            }
            let ends = |one: &&Arc<Connection>| !one.tokens().is_disjoint(&ended);
            open.iter().filter(ends).for_each(|one| one.end());
            let going_on = tokio::select! {
                change = tokens.next() => change.is_some(),
                change = users.next() => change.is_some(),
                () = tokio::time::sleep(EXPIRY_LOOK) => true,
            };
            if !going_on {
                return Ok(());
            }
        }
    }
}

/// Ends all connections when the API does.
struct EndAll(OpenConnections);

impl Drop for EndAll {
    fn drop(&mut self) {
        self.0.all().iter().for_each(|one| one.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_for_this_node_by_its_address() {
        let roster = [NodeReach {
            id: "n1".into(),
            addresses: vec!["one.example.org:8205".into(), "[2001:db8::1]:8205".into()],
            fingerprint: String::new(),
        }];
        let check = |host: &str| {
            let request = Request::builder().header(header::HOST, host).body(()).unwrap();
            check_host(&request, &roster).is_ok()
        };
        for own in
            ["cortex", "127.0.0.1:8205", "[::1]:8205", "[::1]", "ONE.example.org", "localhost:1"]
        {
            assert!(check(own), "{own}");
        }
        for other in ["example.org", "one.example.org.evil.test:8205", "", "a:b"] {
            assert!(!check(other), "{other}");
        }
    }

    #[test]
    fn a_stranger_does_not_take_all_connections() {
        let open = OpenConnections::default();
        let from = |ip: &str| Arc::new(Connection::new(ip.parse().unwrap()));
        let mut held = Vec::new();
        let mut add = |one: Arc<Connection>| {
            let added = open.add(&one).is_ok();
            held.push(one);
            added
        };
        assert!((0..CONNECTIONS_EACH_MAX).all(|_| add(from("192.0.2.1"))));
        assert!(!add(from("192.0.2.1")));
        assert!(add(from("192.0.2.2")));
        held.clear();
        assert!(open.add(&from("192.0.2.1")).is_ok());
    }
}
