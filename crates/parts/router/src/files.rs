//! Static files: which of an application's files answers a request, and in which of its forms.

pub mod answer;
pub mod cache;
pub mod conditions;
mod found;
mod large;
mod read;
pub mod recent;
pub mod source;

use std::path::PathBuf;
use std::sync::Arc;

use model::never_public::{ServedAs, is_kept_back};
use model::release::StaticMount;
use router_core::files::coding;
use router_core::files::{INDEX, has_extension, wants_page};

use self::answer::{FileAnswer, FileAnswerKind, Slash};
use self::cache::Files;
use self::conditions::Conditions;
use self::found::{Content, Found};
use self::read::beside;
use self::source::{Roots, Rules};

/// The file that a site answers with, under status 404, when it has nothing else.
const NOT_FOUND: &str = "404.html";

#[derive(Default)]
pub struct Looked {
    /// The answer; `None` if no file answers and the application is asked.
    pub answer: Option<FileAnswer>,
    /// Whether a client that takes something else may get something else under this address.
    pub varies: bool,
}

/// Looks through `candidates` until one of them answers.
pub async fn find(
    files: &Arc<Files>,
    roots: &Roots,
    rules: Rules,
    candidates: &[(&StaticMount, String)],
    conditions: Box<Conditions>,
) -> Looked {
    let mut varies = false;
    let answer = answer(files, roots, rules, candidates, conditions, &mut varies).await;
    Looked { answer, varies }
}

async fn answer(
    files: &Arc<Files>,
    roots: &Roots,
    rules: Rules,
    candidates: &[(&StaticMount, String)],
    conditions: Box<Conditions>,
    varies: &mut bool,
) -> Option<FileAnswer> {
    for (mount, path) in candidates {
        let root = FilesRoot::new(files, roots, rules, mount);
        let (name, plain) = match root.look(path, rules).await? {
            Sought::File(name, plain) => (name, plain),
            Sought::Elsewhere(slash) => {
                let found = Arc::new(Found::missing());
                return Some(FileAnswer {
                    kind: FileAnswerKind::Redirect(slash),
                    ..FileAnswer::whole(found)
                });
            }
            Sought::Nothing => {
                *varies |= mount.fallback.is_some() && has_extension(path);
                match root.fallback(path, &conditions).await? {
                    Some(found) => found,
                    None => continue,
                }
            }
        };
        let has = |coding| plain.codings.contains(&coding);
        let coding = coding::choose(conditions.accepted.as_deref(), has);
        let found = match coding {
            Some(coding) => files.open(beside(&root.directory.join(name), coding), roots).await?,
            None => plain.clone(),
        };
        // It may be gone since.
        let (found, coding) = if found.is_file() { (found, coding) } else { (plain.clone(), None) };
        let conditions = Some(conditions);
        return Some(FileAnswer {
            found,
            plain,
            coding,
            conditions,
            kind: FileAnswerKind::Content,
        });
    }
    for (mount, _) in candidates.iter().filter(|_| rules.is_site) {
        let found = FilesRoot::new(files, roots, rules, mount).open(NOT_FOUND).await?;
        if found.is_file() {
            return Some(FileAnswer { kind: FileAnswerKind::NotFound, ..FileAnswer::whole(found) });
        }
    }
    None
}

/// A directory whose files may answer.
struct FilesRoot<'a> {
    files: &'a Arc<Files>,
    roots: &'a Roots,
    mount: &'a StaticMount,
    directory: PathBuf,
    served: ServedAs,
}

enum Sought {
    /// A file, with its name in the root.
    File(String, Arc<Found>),
    Elsewhere(Slash),
    Nothing,
}

impl<'a> FilesRoot<'a> {
    fn new(
        files: &'a Arc<Files>,
        roots: &'a Roots,
        rules: Rules,
        mount: &'a StaticMount,
    ) -> FilesRoot<'a> {
        let directory = roots.build.join(&mount.directory);
        let served = mount.served(rules.is_built && rules.is_site);
        FilesRoot { files, roots, mount, directory, served }
    }

    /// Opens a file; one that is kept back counts as missing. `None` if the disk's pool is gone.
    async fn open(&self, name: &str) -> Option<Arc<Found>> {
        if is_kept_back(name, self.served) {
            return Some(Arc::new(Found::missing()));
        }
        self.files.open(self.directory.join(name), self.roots).await
    }

    async fn look(&self, path: &str, rules: Rules) -> Option<Sought> {
        let is_directory = path.is_empty() || path.ends_with('/');
        let name = if is_directory { format!("{path}{INDEX}") } else { path.to_owned() };
        let found = self.open(&name).await?;
        if found.is_file() {
            return Some(Sought::File(name, found));
        }
        let bare = path.trim_end_matches('/');
        if rules.is_site && !bare.is_empty() {
            let name = format!("{bare}.html");
            let page = self.open(&name).await?;
            if page.is_file() {
                return Some(match is_directory {
                    true => Sought::Elsewhere(Slash::Without),
                    false => Sought::File(name, page),
                });
            }
        }
        if matches!(found.content, Content::Directory)
            && self.open(&format!("{path}/{INDEX}")).await?.is_file()
        {
            return Some(Sought::Elsewhere(Slash::With));
        }
        Some(Sought::Nothing)
    }

    /// Returns the page that a single-page application has for all of its addresses.
    async fn fallback(
        &self,
        path: &str,
        conditions: &Conditions,
    ) -> Option<Option<(String, Arc<Found>)>> {
        let Some(fallback) = &self.mount.fallback else { return Some(None) };
        if !wants_page(path, conditions.kinds.as_deref()) {
            return Some(None);
        }
        let found = self.open(fallback).await?;
        Some(found.is_file().then(|| (fallback.clone(), found)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;

    #[tokio::test]
    async fn only_what_is_missing_depends_on_what_a_client_takes() {
        let directory = tempfile::tempdir().unwrap();
        let build = directory.path().to_path_buf();
        for name in ["index.html", "app.js"] {
            std::fs::write(build.join(name), name).unwrap();
        }
        let files = Arc::new(Files::new(Handle::current()));
        let roots = Roots { build: build.clone(), persist: build };
        let mount =
            StaticMount { prefix: "/".into(), directory: ".".into(), fallback: Some(INDEX.into()) };
        let rules = Rules { is_site: true, is_built: true };
        for (path, expected) in [("app.js", false), ("old.js", true), ("about", false)] {
            let conditions = Conditions::read(b"GET / HTTP/1.1\r\n\r\n");
            let asked = [(&mount, path.to_owned())];
            let looked = find(&files, &roots, rules, &asked, conditions).await;
            assert_eq!(looked.varies, expected, "{path}");
        }
    }
}
