//! Sites of stores in an etcd server of their own.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::super::Address;
use super::server::EtcdServer;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::SharedStore;
use store::options::{OpenError, Options, VALUE_AGE_MIN};
use store_contract::StoreSite;

pub fn address(server: &EtcdServer, root: &str) -> Address {
    Address { endpoints: vec![format!("127.0.0.1:{}", server.port())], root: root.into() }
}

pub async fn open(
    address: &Address,
    at: &Path,
    node: &str,
    value_age_min: Duration,
) -> Result<SharedStore, OpenError> {
    let layout = DataDirectory::new(at.join("data"), at);
    let options = Options { value_age_min, ..Options::default() };
    super::super::open(address, &layout, node.parse().unwrap(), Clock::start(), options).await
}

/// One node with a cluster of its own.
pub struct EtcdSite {
    pub server: EtcdServer,
    pub place: TempDir,
}

impl EtcdSite {
    pub fn new() -> EtcdSite {
        EtcdSite { server: EtcdServer::start(), place: TempDir::new().unwrap() }
    }

    pub async fn try_open(&self, root: &str, node: &str) -> Result<SharedStore, OpenError> {
        let at = self.place.path().join(node);
        std::fs::create_dir_all(&at).unwrap();
        open(&address(&self.server, root), &at, node, VALUE_AGE_MIN).await
    }
}

impl StoreSite for EtcdSite {
    async fn open(&self) -> SharedStore {
        self.try_open("test", "n1").await.unwrap()
    }
}
