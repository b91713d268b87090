//! `cortex metrics`.

use clap::Args;

use super::{Session, store};

#[derive(Debug, Args)]
pub struct Metrics {}

impl Metrics {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        store::copy_to_stdout(session.client.download("/v1/metrics").await?).await
    }
}
