//! `cortex self-check`: reports whether this binary works here, and which formats it knows. An
//! upgrade asks for it before it tries a binary.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use super::output;
use os::directory::private_directory;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::open::open_alone;
use store::options::Options;
use upgrade::formats::Formats;

#[derive(Debug, Args)]
pub struct SelfCheck {}

/// A directory that is removed however the check ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl SelfCheck {
    pub async fn run(self) -> anyhow::Result<()> {
        let place = format!("cortex-self-check-{}", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(place));
        private_directory(&scratch.0)
            .with_context(|| format!("{} cannot be made: set TMPDIR", scratch.0.display()))?;
        keeps_what_it_acknowledged(&scratch.0).await.context("a store of its own")?;
        output::print(&serde_json::to_string(&Formats::own())?)
    }
}

async fn keeps_what_it_acknowledged(directory: &std::path::Path) -> anyhow::Result<()> {
    let layout = DataDirectory::new(directory.to_path_buf(), directory);
    let (node, key): (model::NodeId, model::Key) = ("selfcheck".parse()?, "self::check".parse()?);
    let store = open_alone(&layout, node.clone(), Clock::start(), Options::default())?;
    store.set(key.clone(), "kept".into()).await?;
    store.close().await?;
    let store = open_alone(&layout, node, Clock::start(), Options::default())?;
    let found = store.lookup(&key).await?;
    let kept = found.as_ref().and_then(|entry| entry.value.inline()).is_some_and(|v| v == "kept");
    ensure!(kept, "what was written is not there after it was opened again");
    Ok(store.close().await?)
}
