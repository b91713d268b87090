//! The plan of which address answers for which name, whatever proxy it is written for. Names that
//! could mean something else in a configuration are left out.

use std::net::{IpAddr, SocketAddr};

use api_types::{NodeRow, RouteRow};

/// The applications with their servers, and the address at which this node's router is reached on
/// this machine: it answers for whatever is not written, and for whatever fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingPlan {
    pub router: Option<SocketAddr>,
    pub applications: Vec<Planned>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub name: String,
    pub hosts: Vec<String>,
    pub servers: Vec<PlannedServer>,
    /// Paths whose files the router has, and instances may not.
    pub files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedServer {
    pub name: String,
    pub address: SocketAddr,
    /// Requests at a time.
    pub concurrency: Option<u32>,
}

impl RoutingPlan {
    /// Makes the plan. An application that has instances here is served by them; one that has none
    /// is served by the routers of nodes that have some. If none of those can be reached from here,
    /// this node's router finds them.
    pub fn make(routes: &[RouteRow], nodes: &[NodeRow]) -> RoutingPlan {
        let here = nodes.iter().find(|node| node.here);
        let router = here.and_then(|node| node.http.as_deref()?.parse().ok()).map(reached_locally);
        let planned = |route: &RouteRow| {
            let hosts: Vec<String> =
                route.hosts.iter().filter(|host| is_plain(host)).cloned().collect();
            let files = route.files.iter().filter(|path| is_plain_path(path)).cloned();
            let local = route.instances.iter().map(|instance| PlannedServer {
                name: format!("web{}", instance.slot),
                address: SocketAddr::from(([127, 0, 0, 1], instance.port)),
                concurrency: instance.concurrency,
            });
            let mut servers: Vec<PlannedServer> = local.collect();
            // The router has to look for files of any path, so it gets all requests.
            if route.files.iter().any(|path| path == "/" || !is_plain_path(path)) {
                servers.clear();
            } else if servers.is_empty() {
                let of =
                    route.nodes.iter().filter_map(|id| nodes.iter().find(|node| node.id == *id));
                servers.extend(of.filter_map(far));
            }
            let sound = !hosts.is_empty() && is_plain(&route.application);
            (sound && !servers.is_empty()).then(|| Planned {
                name: route.application.clone(),
                hosts,
                servers,
                files: files.collect(),
            })
        };
        RoutingPlan { router, applications: routes.iter().filter_map(planned).collect() }
    }
}

/// Returns the router of another node, if it listens on an address that others can reach.
fn far(node: &NodeRow) -> Option<PlannedServer> {
    let http: SocketAddr = node.http.as_deref()?.parse().ok()?;
    let ip = match http.ip() {
        ip if ip.is_loopback() => return None,
        ip if ip.is_unspecified() => {
            let known = node.addresses.iter().filter_map(|one| one.parse::<SocketAddr>().ok());
            known.map(|one| one.ip()).find(|ip| !ip.is_loopback() && !ip.is_unspecified())?
        }
        ip => ip,
    };
    let alive = node.state == "alive" && is_plain(&node.id);
    alive.then(|| PlannedServer {
        name: format!("node-{}", node.id),
        address: SocketAddr::new(ip, http.port()),
        concurrency: None,
    })
}

fn reached_locally(http: SocketAddr) -> SocketAddr {
    let ip = match http.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ip => ip,
    };
    SocketAddr::new(ip, http.port())
}

/// Returns whether the name consists of letters, digits, dots and hyphens, which mean themselves in
/// both configurations.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

fn is_plain_path(path: &str) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use api_types::RouteInstance;

    pub fn node(id: &str, here: bool, http: &str) -> NodeRow {
        NodeRow {
            id: id.into(),
            name: None,
            state: "alive".into(),
            here,
            roles: Vec::new(),
            store_node: None,
            addresses: vec!["127.0.0.1:8205".into(), "192.0.2.9:8205".into()],
            http: Some(http.into()),
            load_percent: None,
            cores: None,
            memory_bytes: None,
            instances: 0,
            ready: 0,
            walls: Vec::new(),
            version: None,
            joined_at: None,
            last_seen: None,
            drained_since: None,
            note: None,
        }
    }

    pub fn route(name: &str, ports: &[u16], nodes: &[&str], files: &[&str]) -> RouteRow {
        let instance = |(index, port): (usize, &u16)| RouteInstance {
            slot: u32::try_from(index).unwrap() + 1,
            port: *port,
            concurrency: Some(1),
        };
        RouteRow {
            application: name.into(),
            hosts: vec![format!("{name}.localhost"), "www.example".into()],
            instances: ports.iter().enumerate().map(instance).collect(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            files: files.iter().map(|path| (*path).to_owned()).collect(),
        }
    }

    fn addresses(plan: &RoutingPlan) -> Vec<String> {
        let servers = plan.applications.iter().flat_map(|one| &one.servers);
        servers.map(|server| server.address.to_string()).collect()
    }

    #[test]
    fn instances_here_come_first_then_other_nodes_then_this_router() {
        let nodes = [
            node("a", true, "0.0.0.0:8080"),
            node("b", false, "192.0.2.2:8080"),
            node("c", false, "0.0.0.0:8081"),
            node("d", false, "127.0.0.1:8080"),
        ];
        let plan = |route: RouteRow| RoutingPlan::make(&[route], &nodes);
        let here = plan(route("shop", &[5, 6], &["b"], &["/static"]));
        assert_eq!(addresses(&here), ["127.0.0.1:5", "127.0.0.1:6"]);
        assert_eq!(here.router, Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(here.applications[0].files, ["/static"]);
        let away = plan(route("shop", &[], &["b", "c", "d"], &[]));
        assert_eq!(addresses(&away), ["192.0.2.2:8080", "192.0.2.9:8081"]);
        assert_eq!(plan(route("shop", &[], &["d"], &[])).applications, []);
        assert_eq!(plan(route("shop", &[5], &[], &["/"])).applications, [], "files everywhere");
    }

    #[test]
    fn what_could_mean_something_else_is_left_out() {
        let mut bad = route("shop", &[5], &[], &["/a b;"]);
        bad.hosts = vec!["a;b".into(), "shop.example{".into(), "fine.example".into()];
        assert_eq!(RoutingPlan::make(&[bad.clone()], &[]).applications, []);
        bad.files.clear();
        assert_eq!(RoutingPlan::make(&[bad.clone()], &[]).applications[0].hosts, ["fine.example"]);
        bad.application = "x }".into();
        assert_eq!(RoutingPlan::make(&[bad], &[]).applications, []);
    }
}
