//! A server of the measurement's own, in a thread of this process, on a port of its own. It ends
//! with its owner.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

pub struct OwnServer {
    pub port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnServer {
    /// Serves each connection by `serve`, however many there are.
    pub fn start<F>(
        name: &str,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> anyhow::Result<OwnServer>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .context("no port is free on loopback")?;
        let port = listener.local_addr()?.port();
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, serve) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(OwnServer { port, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        self.stop.take().map(|stop| stop.send(()).ok());
        self.thread.take().map(|thread| thread.join().ok());
    }
}

async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let serving = serve(stream);
        tokio::spawn(async move {
            // A client that leaves is no concern of a measurement's server.
            serving.await.ok();
        });
    }
}
