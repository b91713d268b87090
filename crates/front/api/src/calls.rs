//! Calls between nodes: what a node asks of another one for somebody who is connected here, to run
//! a command or to show logs. Each call is one stream: a question, an answer, and then whatever was
//! asked for. The transport decides who may call; must not know how commands run or where logs lie.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use model::value::ContentHash;
use model::{ApplicationName, CertificateName, NodeId, Release, ReleaseId, TokenName, TypedKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::{ApiContext, Shared, certificates, login, shared};
use ::logs;
use agent::AgentContext;
use agent::one_off;
use agent::one_off::{Order, SessionHandle};

use crate::sessions;
use logs::{Item, LogSelection};
use runtime::members::{BoxedStream, Members, StreamKind};
use store::lookup_record;

const VERSION: u32 = 1;
/// The size limit of a message: a few names, a reason, or a line of a log, which is shorter than 64
/// KiB but for what JSON adds.
const MESSAGE_BYTES_MAX: u32 = 512 << 10;
/// Lines of a build's log that wait between the file and the stream.
const ITEMS_WAITING_MAX: usize = 64;
/// The time limit of a message: a question comes at once, an answer after a look at records and the
/// disk.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Streams that are served at a time; commands have a limit of their own, the rest are readers of
/// logs.
const CALLS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    pub v: u32,
    #[serde(flatten)]
    pub ask: CallKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum CallKind {
    /// Asks for a one-off command as versions before sessions held it.
    Run { application: ApplicationName, release: ReleaseId, by: String, prepare: bool },
    /// Runs a one-off command; frames of its session follow the answer.
    RunSession {
        application: ApplicationName,
        release: ReleaseId,
        by: String,
        /// Whether the release may be built there first.
        prepare: bool,
        /// The id that the session gets.
        session: String,
    },
    /// Attaches to a session; its frames follow the answer.
    Attach { application: ApplicationName, session: String, by: String },
    /// Ends the command of a session.
    StopSession { application: ApplicationName, session: String },
    /// Hangs up for a client that is gone for good, unless somebody is attached.
    AbandonSession { application: ApplicationName, session: String, at_once: bool },
    /// Lists the sessions there; the list follows the answer.
    Sessions,
    /// Reads an application's logs; items follow the answer.
    Logs { application: ApplicationName, wanted: LogSelection },
    /// Follows the log of a build; lines follow as long as that node builds the release or runs its
    /// release steps.
    BuildLog { application: ApplicationName, release: ReleaseId },
    /// Says what that node holds for these names; a message with the fingerprints follows.
    Certificates { names: Vec<CertificateName> },
    /// Gives a token of this name for an invitation of that node's; the login follows.
    LogIn { invitation: ContentHash, name: TokenName },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct CallAnswer {
    v: u32,
    /// The reason for a refusal; `None` if the question is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// The error of a node that was reached and refuses to do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CallRefused(pub String);

/// Opens a stream on which that node does what it was asked for.
pub async fn call(
    peers: &dyn Members,
    node: &NodeId,
    ask: CallKind,
) -> anyhow::Result<BoxedStream> {
    let mut stream = peers.open(node, StreamKind::Call).await?;
    write(&mut stream, &Question { v: VERSION, ask }).await?;
    let answer: CallAnswer = read(&mut stream).await?;
    match answer.refused {
        None => Ok(stream),
        Some(why) => Err(CallRefused(why).into()),
    }
}

/// The called side: serves the questions of other nodes.
pub struct Calls(Shared);

impl Calls {
    pub fn new(context: ApiContext) -> Calls {
        Calls(shared(context))
    }

    /// Serves calls from now on.
    pub fn take(self, peers: &dyn Members) {
        let (calls, streams) = (Arc::new(self), Arc::new(Semaphore::new(CALLS_MAX)));
        peers.serve(
            StreamKind::Call,
            Box::new(move |peer, stream| {
                // A caller that finds no room gets no answer, and reports that this node does not
                // answer.
                let Ok(permit) = streams.clone().try_acquire_owned() else { return };
                let calls = calls.clone();
                runtime::task::spawn(async move {
                    if let Err(error) = calls.serve(stream).await {
                        tracing::debug!(%peer, error = format!("{error:#}"), "call.not_served");
                    }
                    drop(permit);
                });
            }),
        );
    }

    async fn serve(&self, mut stream: BoxedStream) -> anyhow::Result<()> {
        let question: Question = read(&mut stream).await?;
        match question.ask {
            CallKind::Run { .. } => {
                let why = "it was upgraded and holds commands in another way: try again once all \
                           nodes are, or ask at that node with its own `cortex`";
                refuse(&mut stream, why).await?;
            }
            CallKind::RunSession { application, release, by, prepare, session } => {
                match self.order(application, &release, (by, session), prepare).await {
                    Err(error) => refuse(&mut stream, &format!("{error:#}")).await?,
                    Ok((agent, order)) => {
                        accept(&mut stream).await?;
                        one_off::serve(agent, order, stream).await?;
                    }
                }
            }
            CallKind::Attach { application, session, by } => {
                match self.session(&application, &session).await? {
                    None => refuse(&mut stream, "there is no such session").await?,
                    Some(session) => {
                        accept(&mut stream).await?;
                        one_off::attach(session, &by, stream).await?;
                    }
                }
            }
            CallKind::StopSession { application, session } => {
                match self.session(&application, &session).await? {
                    None => refuse(&mut stream, "there is no such session").await?,
                    Some(session) => {
                        session.stop().await?;
                        accept(&mut stream).await?;
                    }
                }
            }
            CallKind::AbandonSession { application, session, at_once } => {
                accept(&mut stream).await?;
                if let Some(session) = self.session(&application, &session).await? {
                    one_off::abandon(session, at_once).await;
                }
            }
            CallKind::Sessions => {
                accept(&mut stream).await?;
                write(&mut stream, &sessions::here(self.0.agent.as_ref())).await?;
            }
            CallKind::Logs { application, wanted } => {
                accept(&mut stream).await?;
                let items = logs::read(self.0.layout.logs(&application), wanted);
                pass_on(items, stream).await?;
            }
            CallKind::BuildLog { application, release } => {
                accept(&mut stream).await?;
                let log = self.0.layout.build_log(&application, &release);
                let (store, node) = (self.0.store.clone(), self.0.node.clone());
                let (sender, items) = mpsc::channel(ITEMS_WAITING_MAX);
                runtime::task::spawn(async move {
                    logs::follow_build(log, store, node, application, release, sender).await.ok();
                });
                pass_on(items, stream).await?;
            }
            CallKind::Certificates { names } => {
                accept(&mut stream).await?;
                let found = certificates::fingerprints(&*self.0.store, &names).await?;
                write(&mut stream, &found).await?;
            }
            CallKind::LogIn { invitation, name } => {
                match login::redeem(&self.0, invitation, name).await {
                    Err(problem) => refuse(&mut stream, problem.detail()).await?,
                    Ok(made) => {
                        accept(&mut stream).await?;
                        write(&mut stream, &made).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a session of this node. A node that is starting has to find first what ran before:
    /// it gives no answer meanwhile, and is asked again.
    async fn session(
        &self,
        application: &ApplicationName,
        id: &str,
    ) -> anyhow::Result<Option<SessionHandle>> {
        let Some(agent) = &self.0.agent else { return Ok(None) };
        ensure!(agent.has_adopted(), "it is starting");
        Ok(SessionHandle::find(agent, application, id))
    }

    async fn order(
        &self,
        application: ApplicationName,
        release: &ReleaseId,
        (by, session): (String, String),
        prepare: bool,
    ) -> anyhow::Result<(Arc<AgentContext>, Order)> {
        let agent = self.0.agent.clone().context("it runs no applications")?;
        let key = TypedKey::Release(application.clone(), release.clone()).key();
        let release: Option<Release> = lookup_record(&*agent.store, key).await?;
        let release = release.context("it has not heard of that release yet: try again")?;
        if !prepare && !agent.preparer.is_built(&application, &release) {
            bail!("it does not have that release");
        }
        Ok((agent, Order { application, release, by, session }))
    }
}

async fn accept(stream: &mut BoxedStream) -> anyhow::Result<()> {
    write(stream, &CallAnswer { v: VERSION, refused: None }).await
}

async fn refuse(stream: &mut BoxedStream, why: &str) -> anyhow::Result<()> {
    write(stream, &CallAnswer { v: VERSION, refused: Some(why.into()) }).await
}

/// Sends items until there are no more or nobody listens.
async fn pass_on(mut items: mpsc::Receiver<Item>, stream: BoxedStream) -> anyhow::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut nothing = [0; 1];
    loop {
        let item = tokio::select! {
            item = items.recv() => item,
            // The caller sends nothing more, so a read that returns means that it hung up.
            _ = reader.read(&mut nothing) => None,
        };
        let Some(item) = item else { break };
        let bytes = serde_json::to_vec(&item)?;
        writer.write_u32_le(u32::try_from(bytes.len())?).await?;
        writer.write_all(&bytes).await?;
        if items.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(writer.shutdown().await?)
}

/// Reads the next message, however long it takes to come; returns `None` at the end of the stream.
pub async fn receive<T: DeserializeOwned>(stream: &mut BoxedStream) -> anyhow::Result<Option<T>> {
    let length = match stream.read_u32_le().await {
        Ok(length) => length,
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    ensure!(length <= MESSAGE_BYTES_MAX, "a message of {length} bytes");
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    serde_json::from_slice(&bytes)
        .context("it is not understood: start the same version of Cortex on both")
}

async fn write<T: Serialize>(stream: &mut BoxedStream, message: &T) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len())?;
    let writing = async {
        stream.write_u32_le(length).await?;
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    timeout(MESSAGE_TIME_MAX, writing).await.context("it does not listen")??;
    Ok(())
}

async fn read<T: DeserializeOwned>(stream: &mut BoxedStream) -> anyhow::Result<T> {
    let message =
        timeout(MESSAGE_TIME_MAX, receive(stream)).await.context("it does not answer")??;
    message.context("it hung up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_arrives_as_it_was_asked() {
        let (near, far) = tokio::io::duplex(256);
        let (mut near, mut far): (BoxedStream, BoxedStream) = (Box::new(near), Box::new(far));
        let (application, release) = ("shop".parse().unwrap(), "v1.a".parse().unwrap());
        let (by, session) = ("ada".into(), "n1.abc".into());
        let ask = CallKind::RunSession { application, release, by, prepare: false, session };
        let question = Question { v: VERSION, ask };
        write(&mut near, &question).await.unwrap();
        assert_eq!(read::<Question>(&mut far).await.unwrap(), question);
        // A node of the build before asks in another way, which is understood and refused in words.
        let before = r#"{"v":1,"ask":"run","application":"shop","release":"v1.a","by":"ada",
            "prepare":true}"#;
        let before: Question = serde_json::from_str(before).unwrap();
        assert!(matches!(before.ask, CallKind::Run { .. }));
        far.write_u32_le(u32::MAX).await.unwrap();
        assert!(read::<Question>(&mut near).await.is_err(), "no such length is believed");
    }
}
