//! The choice of the back end that keeps the store: read from `--store`, opened where a node or a
//! server starts. Knows the options' spelling and nothing of what the back ends do.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use model::NodeId;
use model::hex::to_hex;
use thiserror::Error;

use cluster::identity::Membership;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use runtime::faults::Faults;
use secrets::Secrets;
use store::SharedStore;
use store::open;
use store::options::{OpenError, Options};

const SCHEME: &str = "etcd://";
/// The root of the keys if none is named, for a cluster that others use too.
const ROOT_DEFAULT: &str = "cortex";
/// The longest root; it stands in front of every key.
const ROOT_BYTES_MAX: usize = 128;
/// The most endpoints: no cluster of etcd is larger, and its own documents advise seven at most.
const ENDPOINTS_MAX: usize = 16;

const ETCD_IS_BUILT: bool = cfg!(feature = "store-etcd");

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Backend {
    /// Our own log below the data directory.
    #[default]
    Local,
    Etcd(EtcdAddress),
}

/// An address of the form `etcd://HOST:PORT[,HOST:PORT…][/ROOT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// The members, each as `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, without slashes around it.
    pub root: String,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BackendError {
    #[error("'{0}' is no store: use 'local', or 'etcd://HOST:PORT[,HOST:PORT…][/PREFIX]'")]
    Unknown(String),
    #[error("'{0}' is no address of an etcd member: write HOST:PORT, for example 127.0.0.1:2379")]
    Endpoint(String),
    #[error("one etcd member at least and {ENDPOINTS_MAX} at most can be named; these are {0}")]
    Count(usize),
    #[error(
        "'{0}' is no prefix for keys in etcd: at most {ROOT_BYTES_MAX} letters, digits, '.', '-', \
         '_', and '/' between them"
    )]
    Root(String),
    #[error(
        "this cortex was built without etcd; build one that has it (protoc and its .proto files \
         are needed, Debian's protobuf-compiler and libprotobuf-dev): cargo build --release \
         --features store-etcd"
    )]
    NotBuilt,
}

impl Backend {
    /// Opens the store, without blocking the thread while disks and networks are waited for.
    /// `options` are those of our own log and of the value files, which both back ends have.
    pub async fn open(
        &self,
        layout: &DataDirectory,
        node: NodeId,
        clock: Clock,
        options: Options,
    ) -> Result<SharedStore, OpenError> {
        match self {
            Backend::Local => {
                let layout = layout.clone();
                let open = move || {
                    let dir = layout.cluster();
                    let cluster = |standing| {
                        let failed = |error| OpenError::Backend(format!("{error:#}"));
                        Membership::settle(&dir, standing).map_err(failed)
                    };
                    open::open(&layout, node, clock, options, cluster)
                };
                let opened = runtime::task::spawn_blocking(open).await;
                opened.unwrap_or_else(|_| Err(OpenError::Interrupted))
            }
            #[cfg(feature = "store-etcd")]
            Backend::Etcd(address) => {
                let EtcdAddress { endpoints, root } = address.clone();
                let address = store_etcd::Address { endpoints, root };
                store_etcd::open(&address, layout, node, clock, options).await
            }
            #[cfg(not(feature = "store-etcd"))]
            Backend::Etcd(_) => Err(OpenError::Backend(BackendError::NotBuilt.to_string())),
        }
    }

    /// Reads what `--store` says. A build without etcd names a wrong address first.
    fn parse(text: &str, etcd_is_built: bool) -> Result<Backend, BackendError> {
        let shown = |text: &str| text.escape_debug().take(80).collect::<String>();
        if text == "local" {
            return Ok(Backend::Local);
        }
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(BackendError::Unknown(shown(text)));
        };
        let (members, root) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = members.split(',').map(str::to_string).collect();
        if endpoints.len() > ENDPOINTS_MAX || members.is_empty() {
            let count = if members.is_empty() { 0 } else { endpoints.len() };
            return Err(BackendError::Count(count));
        }
        if let Some(bad) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(BackendError::Endpoint(shown(bad)));
        }
        let root = match root.trim_end_matches('/') {
            "" => ROOT_DEFAULT,
            root if is_root(root) => root,
            root => return Err(BackendError::Root(shown(root))),
        };
        if !etcd_is_built {
            return Err(BackendError::NotBuilt);
        }
        Ok(Backend::Etcd(EtcdAddress { endpoints, root: root.into() }))
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Backend, BackendError> {
        Backend::parse(text, ETCD_IS_BUILT)
    }
}

/// Returns the store of a node with its secrets sealed, and what keeps the keys. A store that is
/// not ours is returned as it is: the members of an etcd cluster do not know one another, and a
/// guest's values are sealed where they are kept.
pub async fn seal(
    layout: &DataDirectory,
    node: &NodeId,
    backend: &Backend,
    store: SharedStore,
    faults: Faults,
) -> anyhow::Result<(SharedStore, Option<Arc<Secrets>>)> {
    let Some(replication) = store.replication().filter(|_| *backend == Backend::Local) else {
        return Ok((store, None));
    };
    let cluster = to_hex(&replication.cluster().0);
    let (secrets, store) = Secrets::open(layout, node.clone(), cluster, store, faults).await?;
    Ok((store, Some(secrets)))
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match name {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            !host.is_empty() && host.chars().all(allowed)
        }
    };
    is_host && is_port
}

fn is_root(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let parts = |part: &str| !part.is_empty() && part.chars().all(allowed);
    text.len() <= ROOT_BYTES_MAX && text.split('/').all(parts)
}

/// Writes the back end as `--store` takes it.
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Local => f.write_str("local"),
            Backend::Etcd(EtcdAddress { endpoints, root }) => {
                write!(f, "{SCHEME}{}/{root}", endpoints.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<Backend, BackendError>) {
        assert_eq!(Backend::parse(text, true), expected, "{text}");
        if let Ok(backend) = &expected {
            assert_eq!(Backend::parse(&backend.to_string(), true).as_ref(), Ok(backend), "{text}");
        }
        let without = match expected {
            Ok(Backend::Etcd(_)) => Err(BackendError::NotBuilt),
            other => other,
        };
        assert_eq!(Backend::parse(text, false), without, "{text}, in a build without etcd");
    }

    fn etcd(endpoints: &[&str], root: &str) -> Result<Backend, BackendError> {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        Ok(Backend::Etcd(EtcdAddress { endpoints, root: root.into() }))
    }

    #[test]
    fn addresses_are_validated() {
        check("local", Ok(Backend::Local));
        check("etcd://127.0.0.1:2379", etcd(&["127.0.0.1:2379"], "cortex"));
        check("etcd://a:1,[::1]:2/", etcd(&["a:1", "[::1]:2"], "cortex"));
        check("etcd://a:1/x/y-1", etcd(&["a:1"], "x/y-1"));
        check("redis://a:1", Err(BackendError::Unknown("redis://a:1".into())));
        check("etcd://", Err(BackendError::Count(0)));
        for bad in ["a", "a:0", "a:65536", ":1", "u:p@h:1", "::1:2", "[x]:1", "a b:1"] {
            check(&format!("etcd://{bad}"), Err(BackendError::Endpoint(bad.into())));
        }
        check("etcd://a:1,", Err(BackendError::Endpoint(String::new())));
        let many = ["a:1"; ENDPOINTS_MAX + 1].join(",");
        check(&format!("etcd://{many}"), Err(BackendError::Count(ENDPOINTS_MAX + 1)));
        for bad in ["x//y", "a:b", "ä", &"x".repeat(ROOT_BYTES_MAX + 1)] {
            let error = Backend::parse(&format!("etcd://a:1/{bad}"), false).unwrap_err();
            assert!(matches!(error, BackendError::Root(_)), "{error}");
        }
    }

    #[test]
    fn a_build_without_etcd_says_how_to_get_one() {
        let message = BackendError::NotBuilt.to_string();
        for wanted in ["--features store-etcd", "protobuf-compiler", "libprotobuf-dev"] {
            assert!(message.contains(wanted), "{message}");
        }
    }
}
