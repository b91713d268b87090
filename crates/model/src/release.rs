//! Releases: what was pushed, immutable once made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::application::Settings;
use crate::build::BuildId;
use crate::cron::CronRecipe;
use crate::id::{ProcessType, ReleaseId};
use crate::port::PortRecipe;
use crate::record::Unknown;
use crate::time::Timestamp;
use crate::value::ContentHash;
use crate::wall::{AskedIsolation, Egress, Isolation, IsolationMark, Wall};

/// `app::NAME::release::N::NODE`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    pub v: u32,
    pub id: ReleaseId,
    /// A tar archive in the store under `app::NAME::source::HASH`.
    pub source: ContentHash,
    pub source_bytes: u64,
    /// The build; `None` in records from before builds had names: this release alone has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    pub recipe: Recipe,
    #[serde(default)]
    pub settings: Settings,
    pub created_at: Timestamp,
    /// The user who pushed, as the operating system names them.
    pub author: String,
    /// What happened in words for people: "push of abc123", "rollback to v3".
    pub note: String,
    /// What the person said of it who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// The commit or revision that was pushed, whole; `None` for a plain directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The release that served when this was asked for, which is where `rollback` goes by default.
    #[serde(default)]
    pub replaces: Option<ReleaseId>,
    /// The release that this one takes back: made without anybody's asking, it brings back what
    /// served before that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_back: Option<ReleaseId>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Release {
    pub fn build_id(&self) -> BuildId {
        self.build.clone().unwrap_or_else(|| BuildId::Of(self.id.clone()))
    }
}

/// The way in which one release is built, released and started: what detection found, overridden by
/// what the project's own files say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// A name from `recipe_core::frameworks`, for example `rails`.
    pub framework: String,
    /// The file that decided, and why: "manage.py names Django".
    pub decided_by: String,
    /// The steps that run once per release and node: dependencies, assets.
    #[serde(default)]
    pub build: Vec<Step>,
    /// The steps that run once per release in the cluster: migrations.
    #[serde(default)]
    pub release: Vec<Step>,
    /// What says that the build steps leave something of use on other machines of the same kind;
    /// `None` if it names this machine or its own path, as virtual environments do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portable: Option<Portable>,
    #[serde(default)]
    pub processes: BTreeMap<ProcessType, ProcessRecipe>,
    /// The variables given to steps and processes; they never override what the user configured.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The variables that become part of what is built: another value needs another build. A `*` at
    /// the end stands for any rest of the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baked: Vec<String>,
    /// The variable under which it finds the bus besides `CORTEX_BUS_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_variable: Option<String>,
    #[serde(default, skip_serializing_if = "Isolation::is_none")]
    pub isolation: Isolation,
    /// What counts where its network is its own.
    #[serde(default, skip_serializing_if = "Egress::is_none")]
    pub egress: Egress,
    /// What its source asked for, or the platform's default, where an owner wants another wall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_asked: Option<AskedIsolation>,
    /// The directories relative to the release that come first in `PATH`, for steps, processes and
    /// one-off commands: `.venv/bin`, `node_modules/.bin`.
    #[serde(default)]
    pub path: Vec<String>,
    /// The interpreters and compilers that it needs, and in which versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<Runtime>,
    /// The paths relative to the source that outlive a release.
    #[serde(default)]
    pub persist: Vec<String>,
    /// Whether it names `$CORTEX_PERSIST` itself, and writes there what outlives a release.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_files: bool,
    /// Whether its files are the same everywhere, or need not be: any node may run it, each with
    /// its own.
    #[serde(default)]
    pub persist_shared: bool,
    /// The directories that the router serves itself.
    #[serde(default)]
    pub statics: Vec<StaticMount>,
    /// The public ports that speak something else than HTTP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRecipe>,
    /// The commands that run at times, once in the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cron: Vec<CronRecipe>,
    /// Notes for people: files and keys that were ignored, and why.
    #[serde(default)]
    pub notes: Vec<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Recipe {
    /// Returns the wall that it asks for; `None` if it asks for none.
    pub fn wall(&self) -> Option<Wall> {
        Wall::of(self.isolation, self.egress)
    }

    /// Returns what its source asked for, or the platform's default.
    pub fn asked(&self) -> AskedIsolation {
        let (isolation, egress) = (self.isolation, self.egress);
        self.isolation_asked.unwrap_or(AskedIsolation { isolation, egress })
    }

    /// Puts it behind what an owner wants around the application; without a mark, behind what it
    /// asked for. May be repeated, and with another mark.
    pub fn put_behind(&mut self, mark: Option<&IsolationMark>) {
        let (asked, given) = (self.asked(), self.given(mark));
        (self.isolation, self.egress) = (given.isolation, given.egress);
        self.isolation_asked = (given != asked).then_some(asked);
    }

    /// Returns the wall that it gets under a mark.
    pub fn wall_behind(&self, mark: Option<&IsolationMark>) -> Option<Wall> {
        let given = self.given(mark);
        Wall::of(given.isolation, given.egress)
    }

    fn given(&self, mark: Option<&IsolationMark>) -> AskedIsolation {
        let asked = self.asked();
        mark.map_or(asked, |mark| mark.bound(asked))
    }

    /// Returns whether its files keep it on the node that has them.
    pub fn is_tied(&self) -> bool {
        (self.keeps_files || !self.persist.is_empty()) && !self.persist_shared
    }

    /// Returns whether it is files that any node can have, and nothing runs.
    pub fn is_site(&self) -> bool {
        self.processes.is_empty() && !self.statics.is_empty() && !self.is_tied()
    }

    /// Returns whether a variable becomes part of what is built.
    pub fn bakes(&self, variable: &str) -> bool {
        self.baked.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => variable.starts_with(start),
            None => variable == pattern,
        })
    }
}

/// What one file asks of one language: the machine that builds looks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// A name from `recipe_core::runtimes`, for example `python`.
    pub language: String,
    /// A range of versions as that language writes it; empty for any.
    pub wanted: String,
    /// The file in words for people: "engines in package.json".
    pub said_by: String,
    /// Whether nothing else will do. Otherwise the build goes on with what there is, and says so.
    #[serde(default)]
    pub is_required: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portable {
    /// The paths relative to the release that are of no use elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

/// One command, run by `/bin/sh -c` in the release's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name for people: "Installing gems".
    pub name: String,
    pub command: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecipe {
    /// The command, run by `/bin/sh -c 'exec …'` in the release's directory; `$PORT` and `$HOST`
    /// say where to listen.
    pub command: String,
    /// The requests at a time; `None` for as many as come, 1 for a serial server.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// The instances wanted until the user scales.
    pub default_count: u32,
}

/// A mount: `prefix` of the URL path is served from `directory` of the release, before the
/// processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticMount {
    /// The prefix, which starts and ends with `/`.
    pub prefix: String,
    /// The directory, relative to the release's.
    pub directory: String,
    /// The file that is served with status 200 if no file matches (single-page applications),
    /// relative to `directory`.
    #[serde(default)]
    pub fallback: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_and_goes_and_what_was_asked_for_stays() {
        let mark = |isolation, egress| IsolationMark {
            least: AskedIsolation { isolation, egress },
            by: "ada".into(),
            since: Timestamp(1),
            restart: 1,
            unknown: Unknown::new(),
        };
        let none = Recipe::default();
        let full = Recipe { isolation: Isolation::Full, egress: Egress::All, ..Recipe::default() };
        let closed = mark(Isolation::Full, Egress::None);
        for as_pushed in [none, full] {
            let mut recipe = as_pushed.clone();
            recipe.put_behind(Some(&closed));
            assert_eq!((recipe.isolation, recipe.egress), (Isolation::Full, Egress::None));
            assert_eq!(recipe.asked(), as_pushed.asked());
            // Another mark counts from what was asked for, not from what the last one gave.
            recipe.put_behind(Some(&mark(Isolation::Full, Egress::All)));
            assert_eq!((recipe.isolation, recipe.egress), (Isolation::Full, Egress::All));
            assert_eq!(recipe.wall_behind(Some(&closed)), Some(Wall::Full));
            recipe.put_behind(None);
            assert_eq!(recipe, as_pushed);
        }
    }
}
