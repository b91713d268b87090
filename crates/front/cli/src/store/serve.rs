//! `cortex store serve`: runs the store alone, in the foreground, until a signal ends it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use model::{ApplicationName, ReleaseId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::level_filters::LevelFilter;

use super::super::{Session, output};
use super::cluster::PeerArgs;
use ::cluster;
use api::{ApiContext, NodeControl};
use api_types::PortRow;
use cluster::peers::Peers;
use node::backend::{self, Backend};
use node::identity;
use os::directory;
use os::layout::DataDirectory;
use redis::tls::Certificate;
use redis::tls::self_made;
use redis::{PORT_DEFAULT, ServerConfig, ServerHandle};
use runtime::driver::Clock;
use runtime::faults::Faults;
use runtime::supervise::supervise;
use store::bus::Bus;
use store::options::Options;

#[derive(Debug, Args)]
pub struct Serve {
    /// Where clients on this machine connect; 'none' for nowhere [default: 127.0.0.1:8206]
    #[arg(long, value_name = "HOST:PORT")]
    redis: Option<String>,
    /// A UNIX socket for this user's clients
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Where clients connect with TLS; they have to authenticate
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::public)]
    tls: Option<SocketAddr>,
    /// The certificate chain for --tls, in PEM [default: one made here]
    #[arg(long, value_name = "FILE", requires = "tls", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    peers: PeerArgs,
    /// Where the store is kept: local, or etcd://HOST:PORT[,HOST:PORT…][/PREFIX]
    #[arg(long, value_name = "WHERE", default_value_t)]
    store: Backend,
    /// Log more
    #[arg(short, long)]
    verbose: bool,
}

/// The control of a process that has nothing but the store: the API can only end it.
#[derive(Default)]
struct StoreControl {
    stop: Notify,
}

impl NodeControl for StoreControl {
    fn shut_down(&self) {
        self.stop.notify_one();
    }

    fn ports(&self) -> Vec<PortRow> {
        Vec::new()
    }

    fn serves(&self, _name: &ApplicationName, _release: &ReleaseId) -> bool {
        false
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn set_fail_point(&self, _name: &str, _action: &str) -> Result<(), String> {
        Err("fail points are for tests of `cortex up`".into())
    }
}

impl Serve {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        let level = if self.verbose { LevelFilter::DEBUG } else { LevelFilter::WARN };
        use std::io::IsTerminal;
        let colours = std::io::stderr().is_terminal();
        let log = tracing_subscriber::fmt().with_max_level(level).with_target(false);
        log.with_ansi(colours).with_writer(std::io::stderr).init();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(&session.layout))
    }

    async fn serve(self, layout: &DataDirectory) -> anyhow::Result<()> {
        let config = self.server_config(layout)?;
        let _lock = identity::lock(layout)?;
        directory::socket_directory(layout)?;
        let id = identity::node_id(layout)?;
        let clock = Clock::start();
        let wanted = self.peers.options();
        anyhow::ensure!(
            self.store == Backend::Local || (wanted.listen.is_none() && wanted.join.is_none()),
            "nodes with a store in etcd meet there: leave --listen and --join out"
        );
        let prepared = cluster::prepare::prepare(layout, &id, &wanted).await?;
        let store = self.store.open(layout, id.clone(), clock, Options::default()).await?;
        let faults = Faults::default();
        let (store, secrets) = backend::seal(layout, &id, &self.store, store, faults).await?;
        let bus = Arc::new(Bus::default());
        let (of, named) = (layout.clone(), id.clone());
        let peers =
            Peers::open(prepared, of, named, clock, store.clone(), None, bus.clone()).await?;
        if let (Some(secrets), Some(peers)) = (&secrets, &peers) {
            secrets.connect(peers.clone());
        }
        let beneath = store.beneath().unwrap_or(&store).clone();
        let server = redis::start(config, beneath, bus, id.clone(), clock)?;
        let told = Arc::new(StoreControl::default());
        let api = ApiContext {
            store: store.clone(),
            node: id,
            roles: "store".parse()?,
            layout: layout.clone(),
            clock,
            http: SocketAddr::from(([127, 0, 0, 1], 0)),
            control: told.clone(),
            peers: peers.clone(),
            agent: None,
            secrets: secrets.clone(),
            upgrading: None,
            changes: Arc::default(),
        };
        let mut parts = JoinSet::new();
        if let Some(secrets) = secrets {
            parts.spawn(supervise("secrets", move || secrets.clone().run()));
        }
        if let Some(peers) = peers {
            parts.spawn(supervise("peers", move || peers.clone().run()));
        }
        parts.spawn(supervise("api", move || api::serve_store(api.clone())));
        self.greet(&server, layout)?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => {}
            ended = tokio::signal::ctrl_c() => ended?,
            () = told.stop.notified() => {}
        }
        std::fs::remove_file(layout.api_socket()).ok();
        server.stop();
        parts.shutdown().await;
        store.close().await?;
        Ok(())
    }

    fn server_config(&self, layout: &DataDirectory) -> anyhow::Result<ServerConfig> {
        let tcp = match self.redis.as_deref() {
            None => Some(SocketAddr::from(([127, 0, 0, 1], PORT_DEFAULT))),
            Some("none") => None,
            Some(text) => Some(text.parse().with_context(|| {
                format!("'{text}' is not an address: write for example --redis 127.0.0.1:8206")
            })?),
        };
        let tls = self.tls.map(|address| Ok((address, self.certificate(address, layout)?)));
        let tls: Option<anyhow::Result<_>> = tls;
        let (tls, listeners) = (tls.transpose()?, Arc::default());
        let unix = self.unix.clone();
        let config = ServerConfig { tcp, unix, tls, listeners, ..ServerConfig::default() };
        if config.tcp.is_none() && config.unix.is_none() && config.tls.is_none() {
            bail!("nobody could connect: give --redis, --unix or --tls");
        }
        Ok(config)
    }

    fn certificate(
        &self,
        address: SocketAddr,
        layout: &DataDirectory,
    ) -> anyhow::Result<Certificate> {
        if let (Some(chain), Some(key)) = (&self.tls_certificate, &self.tls_key) {
            return Ok(Certificate { chain: chain.clone(), key: key.clone() });
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut names = vec!["localhost".into(), "127.0.0.1".into(), host];
        if !address.ip().is_unspecified() && !address.ip().is_loopback() {
            names.push(address.ip().to_string());
        }
        self_made(&layout.face_certificate(), names)
    }

    /// Prints what a person needs who does this for the first time.
    fn greet(&self, server: &ServerHandle, layout: &DataDirectory) -> anyhow::Result<()> {
        let mut lines = vec![format!("The store in {} is open.", layout.root().display())];
        if let Some(address) = server.tcp {
            let (host, port) = (address.ip(), address.port());
            lines.push(format!("  redis://{address}    try: redis-cli -h {host} -p {port}"));
        }
        if let Some(path) = &self.unix {
            let path = path.display();
            lines.push(format!("  unix://{path}    try: redis-cli -s {path}"));
        }
        if let Some(address) = server.tls {
            lines.push(format!("  rediss://{address}    needs AUTH: make a user on this machine:"));
            lines.push("      redis-cli -p PORT CORTEX.USER SET NAME WRITE PREFIX".into());
            if self.tls_certificate.is_none() {
                let file = layout.face_certificate().join("certificate.pem");
                lines.push(format!("      clients trust it with {}", file.display()));
            }
        }
        lines.push("Ctrl-C ends it.".into());
        output::print(&lines.join("\n"))
    }
}
