//! Where a store in etcd is: known also to a build that has no etcd in it.

/// `etcd://HOST:PORT[,HOST:PORT…][/ROOT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// `HOST:PORT` each.
    pub endpoints: Vec<String>,
    /// Without slashes around it.
    pub root: String,
}
