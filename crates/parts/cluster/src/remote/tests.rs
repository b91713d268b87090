//! Tests of a node without a store beside one that keeps it, over TLS on loopback: the core
//! contract.

use std::net::SocketAddr;
use std::sync::Arc;

use model::NodeId;
use rcgen::KeyPair;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio_rustls::TlsAcceptor;

use super::{Options, serve};
use crate::frame::{Greeting, Versions};
use crate::identity::{Authority, Membership, Seed};
use crate::link;
use crate::tls::ClusterTls;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::SharedStore;
use store::open::open_alone;
use store_contract::StoreSite;

store_contract::over!(GuestSite::new());

/// A guest's site; the node that keeps the store goes on while the guest is opened and closed.
struct GuestSite {
    keeper: TempDir,
    dir: TempDir,
    address: OnceCell<SocketAddr>,
}

fn id(name: &str) -> NodeId {
    name.parse().unwrap()
}

impl GuestSite {
    fn new() -> GuestSite {
        let dir = TempDir::new().unwrap();
        GuestSite { keeper: TempDir::new().unwrap(), dir, address: OnceCell::new() }
    }

    fn layout(&self) -> DataDirectory {
        DataDirectory::new(self.dir.path().join("data"), self.dir.path())
    }

    /// Starts the node that keeps the store, when it is first needed, and returns its address.
    async fn keep(&self) -> SocketAddr {
        let keeper = DataDirectory::new(self.keeper.path().join("data"), self.keeper.path());
        let store = open_alone(&keeper, id("n1"), Clock::start(), Options::default()).unwrap();
        let dir = keeper.cluster();
        let cluster = Membership::load_or_found(&dir).unwrap().id();
        let authority = Authority::load_or_make(&dir, cluster).unwrap();
        let key = KeyPair::generate().unwrap();
        let tls = ClusterTls::new(&authority, cluster, &id("n1"), &key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(tls.member_server.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(store.clone(), acceptor.clone(), stream));
            }
        });
        let own = self.layout().cluster();
        authority.save(&own).unwrap();
        let pin = None;
        let keeper = Seed { id: id("n1"), addresses: vec![address.to_string()], pin };
        let membership = Membership::of(cluster);
        Membership { guest: true, seeds: vec![keeper], ..membership }.save(&own).unwrap();
        address
    }
}

async fn answer(store: SharedStore, acceptor: TlsAcceptor, stream: TcpStream) {
    let mut stream = acceptor.accept(stream).await.unwrap();
    let answer = async |_: &Greeting| Ok(Greeting::of(id("n1"), Versions::default()));
    link::greet_back(&mut stream, answer).await.unwrap();
    // It ends when the other side does.
    serve::serve(store, Box::new(stream)).await.ok();
}

impl StoreSite for GuestSite {
    async fn open(&self) -> SharedStore {
        self.address.get_or_init(|| self.keep()).await;
        let (layout, options) = (self.layout(), Options::default());
        let (store, _) = super::open(&layout, id("guest"), Clock::start(), options).await.unwrap();
        // From the first connection on, watchers are told of every write.
        store.head().await.unwrap();
        store
    }
}

#[tokio::test]
async fn records_that_are_files_are_at_hand_and_others_are_fetched_when_read() {
    let site = GuestSite::new();
    let store = site.open().await;
    let record = Arc::new(vec![b'r'; 3 * store::INLINE_VALUE_MAX]);
    let release = "app::shop::release::1::n1".parse().unwrap();
    let other: model::Key = "other".parse().unwrap();
    store.set(release, record.to_vec().into()).await.unwrap();
    store.set(other.clone(), record.to_vec().into()).await.unwrap();
    store.close().await.unwrap();
    std::fs::remove_dir_all(site.layout().values()).unwrap();
    let store = site.open().await;
    let entries = store.prefix(&"app".parse().unwrap()).await.unwrap();
    assert_eq!(entries[0].value.inline().map(|bytes| bytes.to_vec()), Some(record.to_vec()));
    let away = store.lookup(&other).await.unwrap().unwrap();
    assert_eq!(away.value.size(), record.len() as u64);
    assert!(away.value.inline().is_none() && away.value.read(1 << 20).is_err());
}
