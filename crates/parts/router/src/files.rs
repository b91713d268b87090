//! Static files, from memory where they are small, else by a descriptor that is kept. The disk is
//! read by a pool of other threads, never by the router's.

mod answer;
mod conditions;
mod large;
mod recent;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use model::never_public::{Served, is_kept_back};
use model::release::StaticMount;
use router_core::files::coding::{self, Coding};
use router_core::files::fingerprint::is_fingerprinted;
use router_core::files::{INDEX, content_type, has_extension, wants_page};
use tokio::runtime::Handle;

pub use self::answer::Answer;
use self::answer::{Kind, Slash};
pub use self::conditions::Conditions;
pub use self::recent::Recent;
use super::table::Roots;

/// Larger files are sent from their descriptors.
const SMALL_BYTES_MAX: u64 = 256 * 1024;
const CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Releases do not change; persistent directories do, and are looked at again after this time.
const CACHE_TIME_MAX: Duration = Duration::from_secs(1);
/// While it is read again, for as long as that may take.
const STALE_TIME_MAX: Duration = Duration::from_secs(2);
/// What was not asked for so long is forgotten, with what a removed release had on disk.
const UNUSED_TIME_MAX: Duration = Duration::from_secs(60);
/// How often that is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// What a descriptor counts for, so that at most 256 are kept.
const DESCRIPTOR_COST: usize = 256 * 1024;

/// What a site says where it has nothing else, with status 404.
const NOT_FOUND: &str = "404.html";

/// Shared by all threads.
pub struct Files {
    blocking: Handle,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// By the bytes of their paths: those are compared faster than their components.
    files: BTreeMap<OsString, Cached>,
    bytes: usize,
    /// Somebody looks for what nobody asks for.
    swept: bool,
}

struct Cached {
    found: Arc<Found>,
    read_at: Instant,
    /// Somebody is reading it again; one is enough.
    being_read: bool,
}

struct Found {
    content: Content,
    /// Of a small file: what most clients get, head and content. The content is a part of it.
    answer: Bytes,
    size: u64,
    content_type: &'static str,
    etag: String,
    modified: String,
    /// The same, in seconds.
    changed_at: i64,
    /// Under this name its content never changes.
    lasts: bool,
    /// Further forms of it that lie beside it.
    codings: Vec<Coding>,
}

impl Found {
    fn missing() -> Found {
        Found {
            content: Content::Missing,
            answer: Bytes::new(),
            size: 0,
            content_type: "",
            etag: String::new(),
            modified: String::new(),
            changed_at: 0,
            lasts: false,
            codings: Vec::new(),
        }
    }

    fn is_file(&self) -> bool {
        matches!(self.content, Content::Small(_) | Content::Large(_))
    }
}

enum Content {
    Small(Bytes),
    Large(Arc<File>),
    /// Nothing is there; remembered too, as many requests go on to the application.
    Missing,
    /// A directory asked for without its final `/`.
    Directory,
}

/// How an application's files are looked for.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Nobody else answers: pages need no `.html` in their address, and there is one for what is
    /// not there.
    pub is_site: bool,
    /// A build made them.
    pub is_built: bool,
}

#[derive(Default)]
pub struct Looked {
    /// None when no file answers and the application is asked.
    pub answer: Option<Answer>,
    /// Whoever takes something else may get something else under this address.
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
) -> Option<Answer> {
    for (mount, path) in candidates {
        let place = Place::new(files, roots, rules, mount);
        let (name, plain) = match place.look(path, rules).await? {
            Sought::File(name, plain) => (name, plain),
            Sought::Elsewhere(slash) => {
                let found = Arc::new(Found::missing());
                return Some(Answer { kind: Kind::Redirect(slash), ..Answer::whole(found) });
            }
            Sought::Nothing => {
                *varies |= mount.fallback.is_some() && has_extension(path);
                match place.fallback(path, &conditions).await? {
                    Some(found) => found,
                    None => continue,
                }
            }
        };
        let has = |coding| plain.codings.contains(&coding);
        let coding = coding::choose(conditions.accepted.as_deref(), has);
        let found = match coding {
            Some(coding) => files.open(beside(&place.directory.join(name), coding), roots).await?,
            None => plain.clone(),
        };
        // It may be gone since.
        let (found, coding) = if found.is_file() { (found, coding) } else { (plain.clone(), None) };
        let conditions = Some(conditions);
        return Some(Answer { found, plain, coding, conditions, kind: Kind::Content });
    }
    for (mount, _) in candidates.iter().filter(|_| rules.is_site) {
        let found = Place::new(files, roots, rules, mount).open(NOT_FOUND).await?;
        if found.is_file() {
            return Some(Answer { kind: Kind::NotFound, ..Answer::whole(found) });
        }
    }
    None
}

/// A directory whose files may answer.
struct Place<'a> {
    files: &'a Arc<Files>,
    roots: &'a Roots,
    mount: &'a StaticMount,
    directory: PathBuf,
    served: Served,
}

enum Sought {
    /// By its name in the place.
    File(String, Arc<Found>),
    Elsewhere(Slash),
    Nothing,
}

impl<'a> Place<'a> {
    fn new(
        files: &'a Arc<Files>,
        roots: &'a Roots,
        rules: Rules,
        mount: &'a StaticMount,
    ) -> Place<'a> {
        let directory = roots.build.join(&mount.directory);
        let served = mount.served(rules.is_built && rules.is_site);
        Place { files, roots, mount, directory, served }
    }

    /// What is kept back is not there. None when the disk's pool is gone.
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

    /// The page that a single-page application has for all of its addresses.
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

/// Where another form of a file lies.
fn beside(path: &Path, coding: Coding) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(coding.suffix());
    path.into()
}

impl Files {
    /// `blocking` is a runtime whose pool reads the disk.
    pub fn new(blocking: Handle) -> Files {
        Files { blocking, cache: Mutex::default() }
    }

    /// Where the disk is waited for.
    pub fn pool(&self) -> &Handle {
        &self.blocking
    }

    /// None when the disk's pool is gone.
    async fn open(self: &Arc<Files>, path: PathBuf, roots: &Roots) -> Option<Arc<Found>> {
        if let Some(found) = self.lock().get(path.as_os_str()) {
            return Some(found);
        }
        let (files, roots) = (self.clone(), roots.clone());
        let task = self.blocking.spawn_blocking(move || {
            let found = Arc::new(read(&path, &roots));
            let mut cache = files.lock();
            cache.put(path, found.clone());
            if !std::mem::replace(&mut cache.swept, true) {
                files.blocking.spawn(sweep(Arc::downgrade(&files)));
            }
            drop(cache);
            found
        });
        task.await.ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// None for whoever is to read it from the disk; meanwhile others get what was there.
    fn get(&mut self, path: &OsStr) -> Option<Arc<Found>> {
        let cached = self.files.get_mut(path)?;
        let age = cached.read_at.elapsed();
        let good = age < CACHE_TIME_MAX || (cached.being_read && age < STALE_TIME_MAX);
        cached.being_read |= !good;
        good.then(|| cached.found.clone())
    }

    fn put(&mut self, path: PathBuf, found: Arc<Found>) {
        let path = path.into_os_string();
        let now = Instant::now();
        if let Some(old) = self.files.remove(&path) {
            self.bytes -= cost(&path, &old.found);
        }
        self.bytes += cost(&path, &found);
        let cached = Cached { found, read_at: now, being_read: false };
        self.files.insert(path, cached);
        while self.bytes > CACHE_BYTES_MAX {
            // Whatever comes first: what is asked for is read again at once.
            let Some((path, old)) = self.files.pop_first() else { break };
            self.bytes -= cost(&path, &old.found);
        }
    }

    fn sweep(&mut self) {
        let (now, bytes) = (Instant::now(), &mut self.bytes);
        self.files.retain(|path, one| {
            let keep = now.saturating_duration_since(one.read_at) < UNUSED_TIME_MAX;
            if !keep {
                *bytes -= cost(path, &one.found);
            }
            keep
        });
        self.swept = !self.files.is_empty();
    }
}

/// Forgets what nobody asks for, until nothing is left.
async fn sweep(files: Weak<Files>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(files) = files.upgrade() else { return };
        let mut cache = files.lock();
        cache.sweep();
        if !cache.swept {
            return;
        }
    }
}

/// In bytes of memory.
fn cost(path: &OsStr, found: &Found) -> usize {
    let content = match &found.content {
        Content::Small(bytes) => bytes.len(),
        Content::Large(_) => DESCRIPTOR_COST,
        Content::Missing | Content::Directory => 0,
    };
    content + path.len() + 256
}

fn read(path: &Path, roots: &Roots) -> Found {
    open(path, roots).unwrap_or_else(|| {
        let is_directory = path.is_dir() && is_inside(path, roots).is_some();
        let content = if is_directory { Content::Directory } else { Content::Missing };
        Found { content, ..Found::missing() }
    })
}

/// Links are followed, but not out of the application's own directories.
fn is_inside(path: &Path, roots: &Roots) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let inside = [&roots.build, &roots.persist]
        .into_iter()
        .any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
    inside.then_some(real)
}

fn open(path: &Path, roots: &Roots) -> Option<Found> {
    let real = is_inside(path, roots)?;
    let file = File::open(&real).ok()?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let size = metadata.len();
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let age = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let content = if size <= SMALL_BYTES_MAX {
        let mut bytes = Vec::new();
        // A file that grows meanwhile must not fill the memory.
        file.take(SMALL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Content::Small(bytes.into())
    } else {
        Content::Large(Arc::new(file))
    };
    let size = if let Content::Small(bytes) = &content { bytes.len() as u64 } else { size };
    let name = path.to_string_lossy();
    let (modified, changed_at) = conditions::modified(age);
    let is_coded = coding::ALL.iter().any(|coding| name.ends_with(coding.suffix()));
    let is_there = |coding: &Coding| {
        let other = beside(path, *coding);
        !is_coded && other.is_file() && is_inside(&other, roots).is_some()
    };
    let found = Found {
        content,
        answer: Bytes::new(),
        size,
        content_type: content_type(&name),
        etag: format!("\"{:x}-{size:x}\"", age.as_nanos()),
        modified,
        changed_at,
        lasts: is_fingerprinted(&name),
        codings: coding::ALL.into_iter().filter(is_there).collect(),
    };
    Some(answer::prepare(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Arc<Found> {
        Arc::new(Found::missing())
    }

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

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let mut cache = Cache::default();
        cache.put("a".into(), found());
        let file = Arc::new(tempfile::tempfile().unwrap());
        let large = Found { content: Content::Large(file.clone()), ..Found::missing() };
        cache.put("b".into(), Arc::new(large));
        assert_eq!((cache.files.len(), Arc::strong_count(&file)), (2, 2));
        cache.files.values_mut().for_each(|one| one.read_at -= UNUSED_TIME_MAX);
        cache.put("c".into(), found());
        cache.sweep();
        assert_eq!((cache.files.len(), cache.bytes, Arc::strong_count(&file)), (1, 257, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_is_forgotten_without_another_request() {
        let directory = tempfile::tempdir().unwrap();
        let build = directory.path().to_path_buf();
        let roots = Roots { build: build.clone(), persist: build.clone() };
        let files = Arc::new(Files::new(Handle::current()));
        files.open(build.join("index.html"), &roots).await.unwrap();
        let known = || {
            let cache = files.lock();
            (cache.files.len(), cache.swept)
        };
        tokio::time::sleep(2 * SWEEP_INTERVAL).await;
        assert_eq!(known(), (1, true));
        files.lock().files.values_mut().for_each(|one| one.read_at -= UNUSED_TIME_MAX);
        tokio::time::sleep(2 * SWEEP_INTERVAL).await;
        assert_eq!(known(), (0, false));
    }

    #[test]
    fn descriptors_are_few() {
        let mut cache = Cache::default();
        let file = Arc::new(tempfile::tempfile().unwrap());
        for number in 0..1000 {
            let content = Content::Large(file.clone());
            let path = PathBuf::from(format!("{number}"));
            cache.put(path, Arc::new(Found { content, ..Found::missing() }));
        }
        assert!((200..=256).contains(&(Arc::strong_count(&file) - 1)), "{}", cache.files.len());
    }

    #[test]
    fn one_reads_again_while_others_get_what_was_there() {
        let mut cache = Cache::default();
        assert!(cache.get("a".as_ref()).is_none());
        cache.put("a".into(), found());
        assert!(cache.get("a".as_ref()).is_some());
        let age = |cache: &mut Cache, age| {
            cache.files.values_mut().for_each(|one| one.read_at -= age);
        };
        age(&mut cache, CACHE_TIME_MAX);
        assert!(cache.get("a".as_ref()).is_none(), "the first one reads");
        assert!(cache.get("a".as_ref()).is_some(), "the others do not");
        age(&mut cache, STALE_TIME_MAX);
        assert!(cache.get("a".as_ref()).is_none(), "but not for long");
        cache.put("a".into(), found());
        assert!(cache.get("a".as_ref()).is_some());
        assert_eq!(cache.bytes, 257);
    }
}
