//! An API on a socket of its own, with a real store and nothing that runs applications.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::Method;
use model::{ApplicationName, NodeId, Rollout, RolloutPhase, TypedKey};

use crate::{ApiContext, NodeControl, records};
use api_types::{PortRow, Released};
use client::{AnswerLines, Client, ClientError};
use os::layout::DataDirectory;
use runtime::driver::Clock;
use runtime::faults::Faults;
use store::SharedStore;
use store::options::Options;

#[derive(Default)]
pub struct Control {
    pub stopping: AtomicBool,
    pub faults: Faults,
}

impl NodeControl for Control {
    fn shut_down(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }
    fn ports(&self) -> Vec<PortRow> {
        let error = Some("address in use".into());
        let protocol = "http".into();
        let (address, application, traffic) = ("127.0.0.1:1".into(), None, None);
        vec![PortRow { address, application, protocol, error, traffic }]
    }
    fn serves(&self, _: &model::ApplicationName, _: &model::ReleaseId) -> bool {
        true
    }

    fn metrics(&self) -> String {
        "up 1\n".into()
    }
    fn set_fail_point(&self, _: &str, _: &str) -> Result<(), String> {
        Err("not enabled".into())
    }

    fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

pub struct Fixture {
    _directory: tempfile::TempDir,
    pub layout: DataDirectory,
    pub store: SharedStore,
    pub node: NodeId,
    pub control: Arc<Control>,
    pub client: Client,
    serving: tokio::task::JoinHandle<anyhow::Result<()>>,
    pub context: ApiContext,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Fixture {
    pub async fn start() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let layout =
            DataDirectory::new(directory.path().join("data"), &directory.path().join("run"));
        os::directory::private_directory(layout.root()).unwrap();
        let (node, clock): (NodeId, Clock) = ("n1".parse().unwrap(), Clock::start());
        let store =
            store::open::open_alone(&layout, node.clone(), clock, Options::default()).unwrap();
        let control = Arc::new(Control::default());
        let context = ApiContext {
            store: store.clone(),
            node: node.clone(),
            roles: Default::default(),
            layout: layout.clone(),
            clock,
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            control: control.clone(),
            peers: None,
            agent: None,
            secrets: None,
            upgrading: None,
            changes: Arc::default(),
        };
        let serving = tokio::spawn(crate::serve(context.clone()));
        let client = Client::new(&layout);
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        while !client.is_answering().await {
            assert!(tokio::time::Instant::now() < deadline, "the API does not answer");
            tokio::task::yield_now().await;
        }
        Fixture { _directory: directory, layout, store, node, control, client, serving, context }
    }

    pub async fn push(&self, app: &str, files: &[(&str, &str)]) -> anyhow::Result<Released> {
        self.push_archive(&format!("/v1/apps/{app}/releases?note=test"), archive(files)).await
    }

    pub async fn push_archive(&self, path: &str, archive: Vec<u8>) -> anyhow::Result<Released> {
        let pieces: Vec<_> =
            archive.chunks(700).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece))).collect();
        self.client.upload(Method::POST, path, futures_util::stream::iter(pieces)).await
    }

    pub async fn rollout(&self, app: &str) -> Rollout {
        let name: ApplicationName = app.parse().unwrap();
        records::read(&*self.store, TypedKey::Rollout(name)).await.unwrap().unwrap()
    }

    /// Writes what the coordinator would write at the end of a phase.
    pub async fn conclude(&self, app: &str, phase: RolloutPhase, message: Option<&str>) {
        let mut rollout = self.rollout(app).await;
        rollout.phase = phase;
        rollout.message = message.map(Into::into);
        if phase == RolloutPhase::Done {
            rollout.serving = rollout.target.clone();
        }
        let key = TypedKey::Rollout(app.parse().unwrap());
        records::write(&*self.store, key, &rollout).await.unwrap();
    }

    pub async fn deploy(&self, app: &str, text: &str) -> Released {
        let released = self.push(app, &[("app.py", text)]).await.unwrap();
        self.conclude(app, RolloutPhase::Done, None).await;
        released
    }

    pub async fn progress(&self, released: &Released) -> AnswerLines {
        let (app, id) = (&released.application, &released.id);
        self.client.lines(&format!("/v1/apps/{app}/releases/{id}/progress")).await.unwrap()
    }

    pub async fn keys(&self) -> Vec<String> {
        let keys = self.store.keys(&"app".parse().unwrap()).await.unwrap();
        keys.into_iter().map(String::from).collect()
    }
}

pub const PYTHON: &[(&str, &str)] = &[("app.py", "print('one')\n")];

pub fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

pub fn code<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
    let error = result.unwrap_err();
    match error.downcast_ref() {
        Some(ClientError::Problem(problem)) => problem.code.clone(),
        _ => panic!("no problem: {error:#}"),
    }
}
